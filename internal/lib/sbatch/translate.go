package sbatch

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/spec"
)

// Settings are the facts that a translation needs in addition to the script.
type Settings struct {
	Command []Option // options of the command line, which win over the script's
	Args    []string // arguments of the script
	Image   string   // image of the command line; "": the script's
	Folder  string   // folder from which the job is submitted; "": the job has no workdir
	Now     time.Time

	// Lookup returns a variable of the caller's shell, for --export.
	Lookup func(name string) (string, bool)
}

// Result is a translated script.
type Result struct {
	Job      spec.Job // without defaults, and not validated
	Begin    time.Time
	Wait     bool // --wait
	TestOnly bool // --test-only

	// Notes have no effect on the results of the job. Refused could change them. Wrong are
	// faults of the script; the Job is of no use then. All are in the order of their lines.
	Notes, Refused, Wrong []Finding
}

// translation is the state of one Translate.
type translation struct {
	*Script
	Settings
	given map[string]Option // the option that counts, by name
	out   Result
	shape shape
	lines []string // of the preamble, after the lines of all jobs
}

// Translate turns a script into a job file. It reads no file and no environment. Findings of
// the script and of the command line are in the result.
func Translate(s *Script, settings Settings) Result {
	t := &translation{Script: &Script{}, Settings: settings}
	*t.Script = *s
	t.notes, t.refused, t.wrong = slices.Clone(s.notes), slices.Clone(s.refused), slices.Clone(s.wrong)
	t.choose()
	t.name()
	t.image()
	t.resources()
	t.times()
	t.relations()
	t.environment()
	t.options()
	t.body()
	t.command()
	byLine := func(a, b Finding) int { return a.Line - b.Line }
	slices.SortStableFunc(t.notes, byLine)
	slices.SortStableFunc(t.refused, byLine)
	slices.SortStableFunc(t.wrong, byLine)
	t.out.Notes, t.out.Refused, t.out.Wrong = t.notes, t.refused, t.wrong
	return t.out
}

// groups lists options of which the command line replaces all, even by another name.
var groups = [][]string{
	{"mem", "mem-per-cpu", "mem-per-gpu"},
	{"requeue", "no-requeue"},
	{"gres", "gpus", "gpus-per-node", "gpus-per-task"},
}

// choose finds the option that counts for each name: the last one of the command line, or else
// of the script.
func (t *translation) choose() {
	t.given = map[string]Option{}
	put := func(o Option) {
		if o.Name == "tasks-per-node" {
			o.Name = "ntasks-per-node"
		}
		if o.Name == "requeue" || o.Name == "no-requeue" {
			delete(t.given, "requeue")
			delete(t.given, "no-requeue")
		}
		t.given[o.Name] = o
	}
	for _, o := range t.Options {
		put(o)
	}
	for _, o := range t.Command {
		for _, group := range groups {
			if !slices.Contains(group, o.Name) {
				continue
			}
			for _, name := range group {
				if t.given[name].Line > 0 {
					delete(t.given, name)
				}
			}
		}
		put(o)
	}
}

// has reports whether an option was given.
func (t *translation) has(name string) bool { _, ok := t.given[name]; return ok }

// notes, refusals and faults of an option.
func (t *translation) noteOption(o Option, text string)   { t.note(o.Line, o.String(), text) }
func (t *translation) refuseOption(o Option, text string) { t.refuse(o.Line, o.String(), text) }
func (t *translation) faultOption(o Option, text string)  { t.fault(o.Line, o.String(), text) }

// parse applies a parser to the value of an option, if it was given.
func parse[T any](t *translation, name string, parser func(string) (T, error)) (v T) {
	o, ok := t.given[name]
	if !ok {
		return v
	}
	v, err := parser(o.Value)
	if err != nil {
		t.faultOption(o, err.Error())
	}
	return v
}

var noName = regexp.MustCompile(`[^a-z0-9]+`)

// name sets the job's name, by the rules of Berth.
func (t *translation) name() {
	o, given := t.given["job-name"]
	text := o.Value
	if !given {
		text = path.Base(t.Script.Name)
		text = strings.TrimSuffix(text, path.Ext(text))
	}
	name := strings.Trim(noName.ReplaceAllString(strings.ToLower(text), "-"), "-")
	name = strings.TrimRight(name[:min(len(name), 63)], "-")
	switch {
	case name == "" && given:
		t.faultOption(o, "has no letter or digit; a job name needs at least one of a-z or 0-9")
	case name == "":
		name = "sbatch"
	case given && name != text:
		t.noteOption(o, "the job is named "+name+", since names consist of a-z, 0-9 and dashes; SLURM_JOB_NAME is "+
			"unchanged")
	}
	if !given {
		text = path.Base(t.Script.Name)
	}
	t.out.Job.Name = name
	t.lines = append(t.lines, "export SLURM_JOB_NAME="+quote(text))
}

// image sets the container image: the command line's, or else the script's.
func (t *translation) image() {
	image := t.Image
	for _, o := range t.Own {
		if o.Name == "image" && t.Image == "" {
			image = o.Value
		}
	}
	pyxis, given := t.given["container-image"]
	switch {
	case given && image == "" && (strings.HasPrefix(pyxis.Value, "/") || strings.HasPrefix(pyxis.Value, ".")):
		t.faultOption(pyxis, "is a file; allowed is an image in a registry")
	case given && image == "":
		// pyxis separates the registry by #.
		image = strings.Replace(strings.TrimPrefix(pyxis.Value, "docker://"), "#", "/", 1)
	case given && pyxis.Value != image:
		t.noteOption(pyxis, "the image is "+image+", which --image names")
	}
	if image == "" && !given {
		t.fault(0, t.Script.Name, "names no container image; a job of Berth runs in one: add the line "+
			"#BERTH --image=IMAGE to the script, or pass --image IMAGE")
	}
	t.out.Job.Image = image
}

// times sets the limit of the run and the grace, and the time of the submit.
func (t *translation) times() {
	limit := parse(t, "time", timeLimit)
	t.out.Job.TimeLimit = limit
	if t.has("begin") {
		t.out.Begin = parse(t, "begin", func(text string) (time.Time, error) { return begin(text, t.Now) })
	}
	o, given := t.given["signal"]
	if !given {
		return
	}
	grace, err := early(o.Value)
	switch {
	case errors.Is(err, errOtherSignal):
		t.refuseOption(o, err.Error())
	case err != nil:
		t.faultOption(o, err.Error())
	case limit == 0:
		t.refuseOption(o, "the signal comes before a time limit, and the job has none; state --time")
	case grace >= limit:
		t.faultOption(o, "the signal would come before the start; allowed is a time shorter than --time")
	default:
		t.out.Job.TimeLimit, t.out.Job.StopGrace = limit-grace, &grace
		t.noteOption(o, fmt.Sprintf("SIGTERM comes after time_limit %s, and SIGKILL %s later; a cancel and a "+
			"preemption give this time as well. A job that ends after time_limit counts as failed, also with "+
			"exit code 0",
			limit-grace, grace))
	}
}

var errOtherSignal = errors.New("only B:TERM@SECONDS has a counterpart: Berth sends SIGTERM to the script before it " +
	"ends the job; for another signal remove the option, and use --set checkpoint.path=/checkpoint and " +
	"--set checkpoint.signal=SIGUSR1")

// early returns the time from the signal to the end of the job, for B:TERM[@SECONDS].
func early(text string) (spec.Duration, error) {
	options, rest, found := strings.Cut(text, ":")
	if !found {
		options, rest = "", text
	}
	name, seconds, timed := strings.Cut(rest, "@")
	d := time.Minute
	if timed {
		var ok bool
		if d, ok = count(seconds, time.Second); !ok || d == 0 {
			return 0, errors.New("is not a signal; allowed is B:TERM@SECONDS with 1 to 99999 seconds")
		}
	}
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	if !strings.EqualFold(options, "B") || name != "TERM" && name != "15" {
		return 0, errOtherSignal
	}
	return spec.Duration(d), nil
}

// relations sets arrays and dependencies.
func (t *translation) relations() {
	if x := parse(t, "array", parseArray); len(x.list) > 0 {
		t.array(x)
	}
	if o, ok := t.given["dependency"]; ok {
		needs, when, err := dependency(o.Value)
		if err != nil {
			t.refuseOption(o, err.Error())
		}
		t.out.Job.Needs, t.out.Job.When = needs, when
	}
	if t.has("no-requeue") {
		no := false
		t.out.Job.Preemptible = &no
		t.lines = append(t.lines,
			`[ "$BERTH_ATTEMPT" = 1 ] || { echo "not started again: --no-requeue" >&2; exit 1; }`)
	}
}

// array sets the array and the variables of its elements.
func (t *translation) array(x indexes) {
	t.out.Job.Array = x.array()
	first, last, step := x.list[0], x.list[len(x.list)-1], x.step()
	if step > 0 {
		value := `"$BERTH_ARRAY_INDEX"`
		if first != 0 || step != 1 {
			value = fmt.Sprintf("$((%d + %d * BERTH_ARRAY_INDEX))", first, step)
		}
		t.lines = append(t.lines, "export SLURM_ARRAY_TASK_ID="+value)
	}
	t.lines = append(t.lines, fmt.Sprintf("export SLURM_ARRAY_TASK_COUNT=%d SLURM_ARRAY_TASK_MIN=%d "+
		"SLURM_ARRAY_TASK_MAX=%d SLURM_ARRAY_TASK_STEP=%d", len(x.list), first, last, max(step, 1)))
}

var validVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// environment passes the variables that --export names. Slurm passes all variables of the
// shell by default, and a container starts without them, so this is always noted.
func (t *translation) environment() {
	o, given := t.given["export"]
	if !given {
		t.note(0, t.Script.Name, "variables of your shell are not passed to the job; name those it needs: "+
			"--export=NAME,NAME (--export=NONE passes none, without this line)")
		return
	}
	for part := range strings.SplitSeq(o.Value, ",") {
		name, value, set := strings.Cut(part, "=")
		switch {
		case part == "NONE" || part == "NIL" || part == "":
			continue
		case part == "ALL":
			t.noteOption(o, "variables of your shell are passed by name only: --export=NAME,NAME")
			continue
		case !validVariable.MatchString(name):
			t.faultOption(o, fmt.Sprintf("%.80q is not the name of a variable", name))
			continue
		case !set:
			if value, set = t.Lookup(name); !set {
				t.faultOption(o, name+" is not set in this shell")
				continue
			}
		}
		if t.out.Job.Env == nil {
			t.out.Job.Env = map[string]string{}
		}
		t.out.Job.Env[name] = value
	}
}

// options handles the options that need no calculation, and reports the ones without a
// counterpart.
func (t *translation) options() {
	for _, d := range Definitions() {
		o, ok := t.given[d.Name]
		switch {
		case !ok:
		case d.effect == noted:
			t.noteOption(o, d.Text)
		case d.effect == refused:
			t.refuseOption(o, d.Text)
		}
	}
	for _, name := range []string{"account", "partition", "qos"} {
		if o, ok := t.given[name]; ok {
			t.lines = append(t.lines, "export SLURM_JOB_"+strings.ToUpper(name)+"="+quote(o.Value))
		}
	}
	if o, ok := t.given["comment"]; ok {
		t.out.Job.Labels = map[string]string{"comment": o.Value}
	}
	if o, ok := t.given["wrap"]; ok && o.Line > 0 {
		t.faultOption(o, "is for the command line alone")
	}
	t.out.Wait, t.out.TestOnly = t.has("wait"), t.has("test-only")
	t.out.Job.Workdir = t.Folder
	switch o, ok := t.given["chdir"]; {
	case !ok:
	case t.Folder == "":
		t.refuseOption(o, "no folder is uploaded, so the script would start in the folder of the image")
	default:
		t.noteOption(o, "the job has a copy of this folder in /workspace, and SLURM_SUBMIT_DIR names the copy")
	}
}
