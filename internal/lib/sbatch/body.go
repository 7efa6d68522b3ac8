package sbatch

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	// slurmVariable finds variables of Slurm, with the start of a default behind the name.
	slurmVariable = regexp.MustCompile(`\b(SLURM(?:D)?_[A-Z0-9_]+)(:?[-+=])?`)

	// commandWord finds the commands of Slurm and of MPI where a line of a shell script starts a
	// command, with variables before the command.
	commandWord = regexp.MustCompile("(?:^|[;&|(`{!]|\\b(?:then|do|else|if|while|until|time|exec|nohup)\\s)\\s*" +
		`(?:[A-Za-z_][A-Za-z0-9_]*=\S*\s+)*` +
		`(srun|scontrol|sbatch|salloc|squeue|scancel|sacct|sstat|sinfo|sattach|sbcast|module|ml|mpirun|mpiexec)` +
		"(?:[\\s;&|)<>`]|$)")
)

// shells are the interpreters of which the scripts are searched for commands.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "ash"}

// loginShell matches the argument that makes a shell read the profile.
var loginShell = regexp.MustCompile(`^(--login|-[a-z]*l[a-z]*)$`)

// absentCommands are programs of a Slurm cluster that containers lack.
var absentCommands = map[string]string{
	"sbatch":  "a job has no token of Berth; use a pipeline, or needs in the job file",
	"salloc":  "a job cannot request a second allocation; use a pipeline",
	"squeue":  "use berth queue outside of the job",
	"scancel": "exit instead, or use berth cancel outside of the job",
	"sacct":   "use berth show and berth metrics outside of the job",
	"sstat":   "use berth metrics outside of the job",
	"sinfo":   "use berth machines outside of the job",
	"sattach": "use berth logs -f outside of the job",
	"sbcast":  "each member has a copy of the folder; use inputs for other files",
}

// body searches the script for words of Slurm that behave differently in a container.
func (t *translation) body() {
	shell := slices.Contains(shells, path.Base(t.Interpreter[len(t.Interpreter)-1])) ||
		slices.Contains(shells, path.Base(t.Interpreter[0]))
	starts := !shell && strings.Contains(t.Text, "srun") // the script calls srun
	reported := map[string]bool{}
	for i, line := range strings.Split(t.Text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		t.variables(i+1, line, reported)
		if !shell {
			continue
		}
		for _, m := range commandWord.FindAllStringSubmatchIndex(line, -1) {
			word := line[m[2]:m[3]]
			starts = starts || word == "srun"
			t.word(i+1, word, line[m[3]:], reported)
		}
	}
	if len(t.Interpreter) > 1 && loginShell.MatchString(t.Interpreter[1]) && len(t.programs()) > 0 {
		t.refuse(1, "#!"+strings.Join(t.Interpreter, " "), "a login shell resets PATH, and so finds no srun and no "+
			"scontrol; start the script without this argument")
	}
	if s := t.shape; s.nodes > 1 {
		o := t.many()
		if !starts {
			t.refuseOption(o, fmt.Sprintf("the script calls no srun, so Slurm runs it on the first node alone; Berth "+
				"runs the whole script in each of the %d members", s.nodes))
		} else {
			t.noteOption(o, fmt.Sprintf("each of the %d members runs the whole script, and srun starts the tasks of "+
				"its own member; guard lines that must run once: [ \"$SLURM_NODEID\" = 0 ] && …", s.nodes))
		}
	}
}

// many returns the option to which a job of several nodes is due.
func (t *translation) many() Option {
	for _, name := range []string{"nodes", "ntasks-per-node", "ntasks"} {
		if o, ok := t.given[name]; ok {
			return o
		}
	}
	return Option{Name: "nodes"}
}

// variables refuses variables of Slurm that the preamble does not set, unless the script has a
// default for them.
func (t *translation) variables(line int, text string, reported map[string]bool) {
	for _, m := range slurmVariable.FindAllStringSubmatch(text, -1) {
		name := m[1]
		if m[2] != "" || reported[name] || slices.Contains(Variables, name) {
			continue
		}
		reported[name] = true
		hint := "see docs/guide/from-elsewhere.md for the variables that Berth sets"
		if name == "SLURM_ARRAY_JOB_ID" {
			hint = "an element does not know the id of its array; name the run yourself: --export=RUN=NAME"
		}
		t.refuse(line, name, "is not set in the container; "+hint)
	}
}

// word judges one command of the script.
func (t *translation) word(line int, word, rest string, reported map[string]bool) {
	hint, absent := absentCommands[word]
	switch {
	case word == "srun":
		t.srun(line, rest)
	case word == "scontrol":
		f := strings.Fields(rest)
		if len(f) < 2 || f[0] != "show" || !strings.HasPrefix(f[1], "hostname") {
			t.refuse(line, "scontrol", "is not in the container, except for scontrol show hostnames")
		}
	case absent:
		t.refuse(line, word, "is not in the container; "+hint)
	case word == "module" || word == "ml":
		if !reported["module"] {
			t.note(line, word, "is not in the container; choose an image that contains the software")
		}
		reported["module"] = true
	case (word == "mpirun" || word == "mpiexec") && t.shape.nodes > 1:
		t.refuse(line, word, "reaches other nodes by Slurm or ssh, and members of a job have neither; use srun with a "+
			"launcher such as torchrun, or one node")
	}
}

// srun refuses options of srun that the srun of the preamble does not take.
func (t *translation) srun(line int, rest string) {
	list, err := split(rest)
	if err != nil {
		return // quotes over several lines; srun itself refuses the option when the script runs
	}
	for i := 0; i < len(list); i++ {
		word := list[i]
		name, value, valued := strings.Cut(word, "=")
		letter := word[:min(len(word), 2)]
		switch {
		case !strings.HasPrefix(word, "-") || word == "--":
			return
		case name == "--mpi" && valued && value != "none":
			t.refuse(line, "srun "+word, "has no counterpart: srun connects no MPI processes; use mpirun in one "+
				"member, or another launcher")
			return
		case slices.Contains(srunFlags, word):
		case valued && slices.Contains(srunValues, name):
		case slices.Contains(srunValues, word):
			i++
		case !strings.HasPrefix(word, "--") && slices.Contains(srunValues, letter):
		default:
			t.refuse(line, "srun "+word, "has no counterpart: srun starts its command in the same container, once for "+
				"each task")
			return
		}
	}
}
