# Ray on the nodes of a job: a step of its own for each, so that the loss of a node ends no other's.
umask 077
cluster=$run_dir.ray # a directory: the number of the run's job, and a directory for each job that ran it
temp=/tmp/ray-$SLURM_JOB_ID # of this machine, and short: a socket's path has 107 characters at most
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
# A lost node is noticed within seconds.
export RAY_health_check_initial_delay_ms=1000 RAY_health_check_period_ms=1000
export RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=3
steps=()
nodes=()

die() {
    echo "extensions.cluster.slurm: $*" >&2
    exit 2
}

# Makes this script one of the run's job: where the head is, the token, a log for each node.
belong_to() { # NUMBER OF THE JOB
    of_job=$cluster/$1
    export RAY_AUTH_TOKEN_PATH=$of_job/token
}

# Runs Ray on the node of this step. Where it fails it is started again, but the head, whose end is the run's.
# SIGTERM gives what runs there time to end: `ray start` drains its node.
run_ray() {
    local first=$((12000 + SLURM_JOB_ID % 200 * 100)) # of a hundred ports of this job's own
    local temp=/tmp/ray-$SLURM_JOB_ID
    local ray=
    mkdir -m 700 "$temp" 2>/dev/null
    if [[ ! -O $temp || -L $temp ]]; then
        echo "$temp on $(hostname) is another user's"
        exit 1
    fi
    echo $$ >"$temp/step"
    trap 'stop_ray "$ray"; rm -rf "$temp"; exit 0' TERM
    for attempt in {1..3}; do
        echo "starting Ray on $(hostname), attempt $attempt"
        "$python" -m ray.scripts.scripts start "$@" --block \
            --temp-dir="$temp" \
            --num-cpus="$SLURM_CPUS_ON_NODE" \
            --num-gpus="$gpus" \
            --object-store-memory=78643200 \
            --disable-usage-stats \
            --node-manager-port=$((first + 1)) \
            --object-manager-port=$((first + 2)) \
            --runtime-env-agent-port=$((first + 3)) \
            --dashboard-agent-grpc-port=$((first + 4)) \
            --dashboard-agent-listen-port=$((first + 5)) \
            --metrics-export-port=$((first + 6)) \
            --min-worker-port=$((first + 10)) \
            --max-worker-port=$((first + 99)) &
        ray=$!
        wait "$ray"
        [[ $1 == --head ]] && break
        sleep 5 &
        wait $!
    done
    rm -rf "$temp"
    exit 1
}

# Ends Ray on the node of this step. Without the head there is nothing to drain, and Ray would wait for it.
stop_ray() { # PID of `ray start`, which takes all of Ray on this node along
    if [[ -e $of_job/head ]]; then
        kill "$1"
    else
        kill -KILL "$1"
    fi 2>/dev/null
    wait "$1"
}

# Runs a function of this script on a node, in a step of its own. Called in the background: srun takes its place.
on_node() { # NODE FUNCTION ARGUMENT...
    local node=$1
    shift
    exec srun --export=ALL --overlap --no-kill --nodes=1 --ntasks=1 --nodelist="$node" --cpu-bind=none \
        ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
        bash -c "$(declare -p python gpus of_job); $(declare -f stop_ray "$1"); \"\$@\"" "$1" "$@" >>"$of_job/$node.log" 2>&1
}

# Ends all steps. A step on a lost node is not waited for: the end of the job ends it.
end_steps() {
    trap : TERM
    for signal in TERM KILL; do
        scancel --signal="$signal" "$SLURM_JOB_ID"
        for _ in {1..20}; do
            [[ $(jobs -rp) ]] || return
            sleep 0.5
        done
    done
}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
