# More nodes for a run: Ray on each of them, until the run is over or SLURM takes them back.
belong_to "$(cat "$cluster/job" 2>/dev/null)"
[[ -s $of_job/head && -r $of_job/token ]] || die "$run_dir is not running under SLURM: $cluster/job names no job that runs"
RAY_ADDRESS=$(<"$of_job/head")
export RAY_ADDRESS
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=50 # of the minute that SLURM gives

# Ends Ray on the node of this step, once what runs there has ended.
drain() {
    kill "$(<"/tmp/ray-$SLURM_JOB_ID/step")"
}

leave() {
    trap : TERM
    for node in "${nodes[@]}"; do
        on_node "$node" drain &
    done
}

trap end_steps EXIT
for node in "${nodes[@]}"; do
    on_node "$node" run_ray --address="$RAY_ADDRESS" &
    steps+=($!)
done
trap leave TERM
while [[ $(jobs -rp) && -e $of_job/head ]]; do
    sleep 2 &
    wait $!
done
