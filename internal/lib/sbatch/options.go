package sbatch

import (
	"slices"
	"strings"
)

// Argument says whether an option of sbatch takes a value.
type Argument int

// The kinds of arguments. A value for Optional follows an equals sign.
const (
	NoArgument Argument = iota
	Required
	Optional
)

// effect is the use of an option in a job file.
type effect int

const (
	translated effect = iota // the option becomes a part of the job
	noted                    // its loss leaves the results of the job unchanged
	refused                  // its loss could change the results
)

// Definition describes one option of sbatch.
type Definition struct {
	Name     string // long name, without dashes
	Short    string // one letter, or ""
	Argument Argument
	effect   effect

	// Text is a noun phrase for the help text of a translated option, and the reason and the
	// alternative for the other options.
	Text string
}

// Translated reports whether the option becomes a part of the job file.
func (d Definition) Translated() bool { return d.effect == translated }

// Definitions lists the options of sbatch that Berth knows, by name.
func Definitions() []Definition {
	list := slices.Concat(translatedOptions, notedOptions, refusedOptions)
	slices.SortFunc(list, func(a, b Definition) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// find returns the option with a long name.
func find(name string) (Definition, bool) {
	for _, list := range [][]Definition{translatedOptions, notedOptions, refusedOptions} {
		for _, d := range list {
			if d.Name == name {
				return d, true
			}
		}
	}
	return Definition{}, false
}

// findShort returns the option with a short name of one letter.
func findShort(letter string) (Definition, bool) {
	for _, d := range Definitions() {
		if d.Short == letter {
			return d, true
		}
	}
	return Definition{}, false
}

// translatedOptions become a part of the job file.
var translatedOptions = []Definition{
	{"array", "a", Required, translated, "indexes of an array, such as 0-15%4"},
	{"begin", "b", Required, translated, "time to submit the job, such as 2026-01-31T12:00 or now+2hours"},
	{"chdir", "D", Required, translated, "folder to upload, in which the script runs; default: the current one"},
	{"comment", "", Required, translated, "text for the label comment"},
	{"container-image", "", Required, translated, "container image, as the plugin pyxis of Slurm takes it"},
	{"cpus-per-gpu", "", Required, translated, "CPUs for each GPU"},
	{"cpus-per-task", "c", Required, translated, "CPUs of each task"},
	{"dependency", "d", Required, translated, "jobs to wait for: afterok, afterany or afternotok, such as afterok:JOB"},
	{"export", "", Required, translated, "variables of this shell to pass, by name or as NAME=VALUE; NONE: none"},
	{"gpus", "G", Required, translated, "GPUs of all nodes together: [TYPE:]COUNT"},
	{"gpus-per-node", "", Required, translated, "GPUs of each node: [TYPE:]COUNT"},
	{"gpus-per-task", "", Required, translated, "GPUs of each task: [TYPE:]COUNT"},
	{"gres", "", Required, translated, "GPUs of each node: gpu[:TYPE][:COUNT]"},
	{"job-name", "J", Required, translated, "job name; default: the name of the script"},
	{"mem", "", Required, translated, "memory of each node, such as 16G"},
	{"mem-per-cpu", "", Required, translated, "memory for each CPU"},
	{"mem-per-gpu", "", Required, translated, "memory for each GPU"},
	{"no-requeue", "", NoArgument, translated, "fail the job, instead of starting it again, when its machine is lost"},
	{"nodes", "N", Required, translated, "number of members; each runs the whole script"},
	{"ntasks", "n", Required, translated, "number of tasks that srun starts"},
	{"ntasks-per-node", "", Required, translated, "number of tasks that srun starts in each member"},
	{"parsable", "", NoArgument, translated, "no effect: the output is always the id alone"},
	{"quiet", "Q", NoArgument, translated, "no effect"},
	{"requeue", "", NoArgument, translated, "no effect: restarting after the loss of a machine is the default"},
	{"signal", "", Required, translated, "B:TERM@SECONDS: SIGTERM before the time limit"},
	{"tasks-per-node", "", Required, translated, "the same as --ntasks-per-node"},
	{"test-only", "", NoArgument, translated, "show the placement as berth plan does; submit nothing"},
	{"time", "t", Required, translated, "time limit: MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"},
	{"tmp", "", Required, translated, "disk space of each node, which limits the job's files as well"},
	{"verbose", "v", NoArgument, translated, "no effect"},
	{"wait", "W", NoArgument, translated, "print the job's log, wait for its end and exit with a code for that end"},
	{"wrap", "", Required, translated, "command line to run with /bin/sh, instead of a script"},
}

// notedOptions change no result of a job when they are left out.
var notedOptions = []Definition{
	{"account", "A", Required, noted, "the token decides the tenant to which the job belongs"},
	{"acctg-freq", "", Required, noted, "Berth samples the use of each job: berth metrics"},
	{"contiguous", "", NoArgument, noted, "to keep members together, use --set placement.same_label=LABEL"},
	{"core-spec", "S", Required, noted, "Berth reserves no cores for the system"},
	{"cpu-freq", "", Required, noted, "Berth leaves the clocks of CPUs as they are"},
	{"delay-boot", "", Required, noted, "Berth boots no machines for this job alone"},
	{"error", "e", Required, noted, "Berth stores both streams as the log: berth logs"},
	{"gpu-freq", "", Required, noted, "Berth leaves the clocks of GPUs as they are"},
	{"hint", "", Required, noted, "Berth does not bind CPUs to threads"},
	{"ignore-pbs", "", NoArgument, noted, "lines with #PBS are never read"},
	{"kill-on-invalid-dep", "", Required, noted, "a job whose dependency failed is always canceled"},
	{"mail-type", "", Required, noted, "Berth sends no mail for a job; use notify in the job file for webhooks"},
	{"mail-user", "", Required, noted, "Berth sends no mail for a job; use notify in the job file for webhooks"},
	{"mem-bind", "", Required, noted, "Berth does not bind memory"},
	{"nice", "", Optional, noted, "the order follows the priority: --set priority=low"},
	{"open-mode", "", Required, noted, "each attempt has a log of its own: berth logs"},
	{"output", "o", Required, noted, "Berth stores both streams as the log: berth logs"},
	{"oversubscribe", "s", NoArgument, noted, "jobs share machines, and never CPUs or memory"},
	{"partition", "p", Required, noted, "Berth places the job on any machine that fits; limit it with " +
		"--set placement.labels.NAME=VALUE"},
	{"power", "", Required, noted, "Berth does not manage power"},
	{"prefer", "", Required, noted, "Berth has no preferences by feature"},
	{"priority", "", Required, noted, "the scale differs: use --set priority=0 to 1000"},
	{"profile", "", Required, noted, "Berth samples the use of each job: berth metrics"},
	{"propagate", "", Optional, noted, "limits of the shell do not apply to containers"},
	{"qos", "q", Required, noted, "quotas and priority belong to the tenant"},
	{"spread-job", "", NoArgument, noted, "to spread members, use --set placement.strategy=spread"},
	{"switches", "", Required, noted, "to keep members together, use --set placement.same_label=LABEL"},
	{"thread-spec", "", Required, noted, "Berth reserves no threads for the system"},
	{"threads-per-core", "", Required, noted, "a CPU of Berth is a CPU as the machine's Linux counts them"},
	{"time-min", "", Required, noted, "the time limit stays as --time states it"},
	{"use-min-nodes", "", NoArgument, noted, "the number of members is fixed"},
	{"wait-all-nodes", "", Required, noted, "members always start together"},
	{"wckey", "", Required, noted, "use --set labels.NAME=VALUE"},
}

// refusedOptions could change the result of a job when they are left out.
var refusedOptions = []Definition{
	{"bb", "", Required, refused, "Berth has no burst buffers; use inputs and outputs in the job file"},
	{"bbf", "", Required, refused, "Berth has no burst buffers; use inputs and outputs in the job file"},
	{"cluster-constraint", "", Required, refused, "name the server instead: --context"},
	{"clusters", "M", Required, refused, "name the server instead: --context"},
	{"constraint", "C", Required, refused, "features are labels of machines: --set placement.labels.NAME=VALUE, or " +
		"placement.constraint"},
	{"container", "", Required, refused, "name an image: --image"},
	{"container-mounts", "", Required, refused, "folders of machines are inputs: --set 'inputs=[{from: " +
		"\"file:///NAME/\", to: /PATH}]'"},
	{"container-workdir", "", Required, refused, "the script starts in /workspace; change the folder in the script"},
	{"cores-per-socket", "", Required, refused, "Berth does not choose machines by their sockets"},
	{"deadline", "", Required, refused, "use --set queue_timeout=DURATION to limit the wait"},
	{"distribution", "m", Required, refused, "tasks are numbered by member: the block distribution"},
	{"exclude", "x", Required, refused, "use --set 'placement.avoid_machines=[MACHINE]', with names of berth machines"},
	{"exclusive", "", Optional, refused, "jobs share machines; request the CPUs, memory and GPUs that the job uses"},
	{"export-file", "", Required, refused, "pass variables by --export=NAME,NAME"},
	{"extra-node-info", "B", Required, refused, "Berth does not choose machines by their sockets"},
	{"get-user-env", "", Optional, refused, "the environment is the image's; pass variables by --export=NAME,NAME"},
	{"gid", "", Required, refused, "the container runs as the image's user"},
	{"gpu-bind", "", Required, refused, "use --gpus-per-task, for which srun sets CUDA_VISIBLE_DEVICES"},
	{"hold", "H", NoArgument, refused, "submit the job and hold it: berth hold JOB"},
	{"input", "i", Required, refused, "redirect standard input in the script: COMMAND < FILE"},
	{"licenses", "L", Required, refused, "Berth counts no licenses; limit an array with --array=0-9%2, or share a " +
		"tenant with a quota of running jobs"},
	{"mcs-label", "", Required, refused, "tenants separate jobs"},
	{"mincpus", "", Required, refused, "request CPUs by --cpus-per-task"},
	{"network", "", Required, refused, "the operator chooses the network of gangs"},
	{"no-kill", "k", Optional, refused, "a gang ends when one of its members fails, and continues from a checkpoint"},
	{"nodefile", "F", Required, refused, "Berth chooses the machines; use --set placement.labels.NAME=VALUE"},
	{"nodelist", "w", Required, refused, "Berth chooses the machines; use --set placement.labels.NAME=VALUE"},
	{"ntasks-per-core", "", Required, refused, "Berth does not bind tasks to cores"},
	{"ntasks-per-gpu", "", Required, refused, "state --ntasks-per-node and --gpus-per-node"},
	{"ntasks-per-socket", "", Required, refused, "state --ntasks-per-node"},
	{"overcommit", "O", NoArgument, refused, "request as many CPUs as the job may use: --cpus-per-task"},
	{"reboot", "", NoArgument, refused, "Berth does not reboot machines for a job"},
	{"reservation", "", Required, refused, "Berth has no reservations; ask the operator for a pool"},
	{"sockets-per-node", "", Required, refused, "Berth does not choose machines by their sockets"},
	{"uid", "", Required, refused, "the container runs as the image's user"},
	{"x11", "", Optional, refused, "use berth port-forward for a server in the job"},
}
