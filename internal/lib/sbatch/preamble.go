package sbatch

import (
	"fmt"
	"regexp"
	"strings"
)

// Variables lists the variables of Slurm that the preamble sets, at least for jobs that
// request the resource or the array to which the variable belongs.
var Variables = []string{
	"SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_MIN",
	"SLURM_ARRAY_TASK_STEP", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_ON_NODE",
	"SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_JOBID", "SLURM_JOB_ACCOUNT", "SLURM_JOB_CPUS_PER_NODE",
	"SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION",
	"SLURM_JOB_QOS", "SLURM_LOCALID", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_NNODES",
	"SLURM_NODEID", "SLURM_NODELIST", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID",
	"SLURM_RESTART_COUNT", "SLURM_SUBMIT_DIR", "SLURM_TASKS_PER_NODE",
}

// command sets entrypoint and command. The entrypoint is the preamble, so that the image's own
// does not take the script for its argument. The command is the script and its arguments.
func (t *translation) command() {
	t.out.Job.Entrypoint = []string{"/bin/sh", "-ec", t.preamble()}
	t.out.Job.Command = append([]string{t.out.Job.Name, t.Text}, t.Args...)
}

// preamble returns the shell code that sets Slurm's variables and starts the script.
func (t *translation) preamble() string {
	s := t.shape
	tasks := s.nodes * s.tasksPerNode
	perNode := fmt.Sprint(s.tasksPerNode)
	if s.nodes > 1 {
		perNode = fmt.Sprintf("'%d(x%d)'", s.tasksPerNode, s.nodes)
	}
	cpus := int(*t.out.Job.Resources.CPUs) / 1000
	lines := []string{
		"# Slurm's variables, from Berth's.",
		`export SLURM_JOB_ID="$BERTH_JOB_ID" SLURM_JOBID="$BERTH_JOB_ID" SLURM_RESTART_COUNT=$((BERTH_ATTEMPT - 1))`,
		`export SLURM_NNODES="$BERTH_MEMBERS" SLURM_JOB_NUM_NODES="$BERTH_MEMBERS" SLURM_NODEID="$BERTH_MEMBER"`,
		fmt.Sprintf("export SLURM_NTASKS=%d SLURM_NPROCS=%d SLURM_NTASKS_PER_NODE=%d SLURM_TASKS_PER_NODE=%s",
			tasks, tasks, s.tasksPerNode, perNode),
		fmt.Sprintf("export SLURM_PROCID=$((BERTH_MEMBER * %d)) SLURM_LOCALID=0", s.tasksPerNode),
		fmt.Sprintf("export SLURM_CPUS_PER_TASK=%d SLURM_CPUS_ON_NODE=%d "+
			"SLURM_JOB_CPUS_PER_NODE=%d", s.cpusPerTask, cpus, cpus),
		`export SLURM_JOB_NODELIST="$(echo "$BERTH_PEERS" | sed 's/:[0-9]*//g')" SLURM_SUBMIT_DIR="$PWD"`,
		`export SLURM_NODELIST="$SLURM_JOB_NODELIST"`,
	}
	if s.gpusPerNode > 0 {
		lines = append(lines, fmt.Sprintf("export SLURM_GPUS=%d SLURM_GPUS_PER_NODE=%d SLURM_GPUS_ON_NODE=%d",
			s.nodes*s.gpusPerNode, s.gpusPerNode, s.gpusPerNode))
	}
	if s.gpusPerTask > 0 {
		lines = append(lines, fmt.Sprintf("export SLURM_GPUS_PER_TASK=%d", s.gpusPerTask))
	}
	lines = append(lines, t.lines...)
	lines = append(lines, "folder=$(mktemp -d)")
	programs := t.programs()
	if len(programs) > 0 {
		lines = append(lines, `export PATH="$folder:$PATH"`)
	}
	for _, p := range programs {
		lines = append(lines, `cat > "$folder/`+p.name+`" <<'END'`, p.text+"END",
			`chmod +x "$folder/`+p.name+`"`)
	}
	lines = append(lines,
		"# The script, as it was submitted, with its own interpreter.",
		`printf '%s' "$1" > "$folder/slurm_script"`,
		"shift",
		"exec "+quoteAll(t.Interpreter)+` "$folder/slurm_script" "$@"`)
	return strings.Join(lines, "\n") + "\n"
}

// program is a command of Slurm that the preamble creates in the container.
type program struct{ name, text string }

// programs returns the commands of Slurm that the text of the script contains.
func (t *translation) programs() (list []program) {
	for _, p := range []program{{"srun", srunProgram()}, {"scontrol", scontrolProgram}} {
		if regexp.MustCompile(`\b` + p.name + `\b`).MatchString(t.Text) {
			list = append(list, p)
		}
	}
	return list
}

// scontrolProgram prints the hosts of the members, one a line. Scripts use the first one as
// the address at which the tasks meet.
const scontrolProgram = `#!/bin/sh
case "$1 $2" in
'show hostname'*) echo "${3:-$SLURM_JOB_NODELIST}" | tr , '\n' ;;
*) echo "scontrol: only show hostnames is available here" >&2; exit 2 ;;
esac
`

// Options of srun that its program takes. Other options are refused, at the submit and by the
// program.
var (
	// srunKill ends all tasks of a member when one of them fails.
	srunKill = []string{"-K", "-K1", "--kill-on-bad-exit", "--kill-on-bad-exit=1"}

	// srunFlags have no value. Except for srunKill, they have no effect in one container.
	srunFlags = append([]string{"-l", "--label", "-u", "--unbuffered", "-v", "--verbose", "-Q", "--quiet", "--overlap",
		"-s", "--oversubscribe"}, srunKill...)

	// srunIgnored have a value, and change no result.
	srunIgnored = []string{"-J", "--job-name", "-t", "--time", "--mem", "--mem-per-cpu",
		"--mem-bind", "--cpu-bind", "--cpu_bind", "--hint", "-W", "--wait"}

	// srunValues are all options with a value.
	srunValues = append([]string{"-n", "--ntasks", "-N", "--nodes", "--ntasks-per-node", "-c", "--cpus-per-task",
		"--gpus-per-task", "--gpus-per-node", "--gres", "--export", "--mpi"}, srunIgnored...)
)

// srunProgram returns the srun of the container. It starts its command once for each task of
// the member, waits for all of them, and exits with the highest exit code.
func srunProgram() string {
	return strings.NewReplacer(
		"FLAGS", strings.Join(srunFlags, "|"), "KILL", strings.Join(srunKill, "|"),
		"VALUES", strings.Join(srunValues, "|"), "IGNORED", strings.Join(srunIgnored, "|"),
	).Replace(srunText)
}

const srunText = `#!/bin/sh
# srun for one container: starts a command once for each task of this member.
fail() { echo "srun: $*" >&2; exit 2; }
refuse() { fail "option $* has no counterpart in one container"; }
tasks=$SLURM_NTASKS_PER_NODE kill=
while [ $# -gt 0 ]; do
  case $1 in KILL) kill=1 ;; esac
  case $1 in
  --) shift; break ;;
  FLAGS) shift; continue ;;
  VALUES) [ $# -gt 1 ] || fail "$1 needs a value"; option=$1 value=$2; shift 2 ;;
  --*=*) option=${1%%=*} value=${1#*=}; shift ;;
  -[A-Za-z]?*) value=${1#-?}; option=${1%"$value"}; shift ;;
  -*) refuse "$1" ;;
  *) break ;;
  esac
  case $option in
  -n|--ntasks)
    if [ "$SLURM_NNODES" = 1 ]; then tasks=$value; export SLURM_NTASKS="$value"
    else [ "$value" = "$SLURM_NTASKS" ] || fail "$option $value differs from the job's $SLURM_NTASKS tasks"; fi ;;
  -N|--nodes) [ "$value" = "$SLURM_NNODES" ] || fail "$option $value differs from the job's $SLURM_NNODES nodes" ;;
  --ntasks-per-node) tasks=$value; export SLURM_NTASKS=$((value * SLURM_NNODES)) SLURM_NTASKS_PER_NODE="$value" ;;
  -c|--cpus-per-task) export SLURM_CPUS_PER_TASK="$value" ;;
  --gpus-per-task) export SLURM_GPUS_PER_TASK="${value##*:}" ;;
  --gpus-per-node|--gres) [ "${value##*:}" = "$SLURM_GPUS_ON_NODE" ] ||
    fail "$option $value differs from the member's $SLURM_GPUS_ON_NODE GPUs" ;;
  --export) [ "$value" = ALL ] || refuse "$option $value" ;;
  --mpi) [ "$value" = none ] || refuse "$option $value" ;;
  IGNORED) ;;
  *) refuse "$option" ;;
  esac
done
[ $# -gt 0 ] || fail "names no command"
[ "$tasks" -gt 0 ] 2>/dev/null || fail "$tasks is not a number of tasks"
start() {
  export SLURM_LOCALID="$1" SLURM_PROCID=$((SLURM_NODEID * tasks + $1)); shift
  each=${SLURM_GPUS_PER_TASK:-0}
  if [ "$each" -gt 0 ]; then
    gpu=$((SLURM_LOCALID * each)); end=$((gpu + each)); list=$gpu
    while gpu=$((gpu + 1)); [ $gpu -lt $end ]; do list=$list,$gpu; done
    export CUDA_VISIBLE_DEVICES="$list"
  fi
  exec "$@"
}
[ "$tasks" -gt 1 ] || start 0 "$@"
pids=$(mktemp -d)
input=/dev/null # a shell gives a command in the background no other input
if [ ! -t 0 ]; then cat > "$pids.in"; input=$pids.in; fi
stop() { : > "$pids.stop"; kill $(cat "$pids"/*) 2>/dev/null; }
trap stop TERM INT
watch() {
  id=$1
  (start "$@") < "$input" &
  echo $! > "$pids/$id"
  [ ! -e "$pids.stop" ] || kill $!
  wait $! && exit 0
  code=$?
  [ -z "$kill" ] || stop
  exit $code
}
i=0 all= status=0
while [ $i -lt "$tasks" ]; do
  (watch $i "$@") &
  all="$all $!" i=$((i + 1))
done
for task in $all; do
  wait "$task" || { code=$?; [ $code -le $status ] || status=$code; }
done
exit $status
`

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// quote returns a text as one word of a shell.
func quote(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// quoteAll returns words of a shell.
func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, w := range list {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}
