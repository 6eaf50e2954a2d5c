# start.sh FILE NAME COMMAND...: notes the name of a job in the file, and becomes its command.
echo "$2" >> "$1"
export STARTED_BY=start.sh
shift 2
exec "$@"
