# The run: Ray's head on this node, which is the first, then Ray on the others, then the launcher here.

# Makes this the run's job, once one before it has ended.
claim() {
    for _ in {1..60}; do
        (set -o noclobber && echo "$SLURM_JOB_ID" >"$cluster/job") 2>/dev/null
        before=$(cat "$cluster/job" 2>/dev/null)
        [[ $before == "$SLURM_JOB_ID" ]] && return
        case $(squeue --noheader --format=%T --jobs="$before" 2>/dev/null) in
            "") rm -f "$cluster/job" ;;
            COMPLETING) sleep 5 ;;
            *) die "job $before runs $run_dir" ;;
        esac
    done
    die "job $before of $run_dir has not ended within five minutes"
}

belong_to "$SLURM_JOB_ID"
mkdir -p "$of_job" || die "cannot make $of_job"
claim
"$python" -c 'import secrets; print(secrets.token_hex(32))' >"$of_job/token" || die "cannot write a token"
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # all nodes end at the same time
trap 'rm -f "$of_job/head"; end_steps; rm -f "$cluster/job"' EXIT

on_node "${nodes[0]}" run_ray --head --include-dashboard=false \
    --port=$((12000 + SLURM_JOB_ID % 200 * 100)) &
steps+=($!)
until [[ -O $temp && ! -L $temp && -s $temp/ray_current_cluster ]]; do # what another user made says nothing
    kill -0 "${steps[0]}" 2>/dev/null || die "Ray's head did not start: see $of_job/${nodes[0]}.log"
    sleep 0.5
done
RAY_ADDRESS=$(<"$temp/ray_current_cluster")
export RAY_ADDRESS
echo "$RAY_ADDRESS" >"$of_job/head" # for nodes that join
for node in "${nodes[@]:1}"; do
    on_node "$node" run_ray --address="$RAY_ADDRESS" &
    steps+=($!)
done

"$python" "$launch" "${arguments[@]}" &
driver=$!
trap : TERM # ends the wait below
wait -n "$driver" "${steps[0]}"
kill "$driver" 2>/dev/null # it lives where SLURM said that the time is up, or where Ray's head has ended
wait "$driver"
exit
