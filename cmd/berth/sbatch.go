package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/lib/jobfile"
	"berth/internal/lib/sbatch"
	"berth/spec"
)

// sbatchFlags are the flags of berth sbatch that sbatch itself does not have.
type sbatchFlags struct {
	image             string
	over              overrides
	print             bool
	ignoreUnsupported bool
	noWorkdir         bool
	slurm             []sbatch.Option // the options of sbatch, in the order of the command line
	submit            submitFlags
}

// newSbatch builds "berth sbatch". The script becomes a job file, and the job file is submitted
// as by berth submit: there is one path to the server.
func newSbatch(a *app) *cobra.Command {
	var f sbatchFlags
	cmd := &cobra.Command{
		Use:   "sbatch SCRIPT|- [ARG...]",
		Short: "Submit a batch script of Slurm",
		Long: "Translate the #SBATCH lines of a script into a job file and submit the job. The current folder, or " +
			"the folder\nof --chdir, is uploaded, and the script runs in a copy of it. Command-line options " +
			"override the script's;\narguments after the script are passed to it. Options without a counterpart " +
			"are reported. If ignoring one could\nchange the job's results, the job is not submitted.\n\n" +
			"The container image is named by --image, or in the script by a line that Slurm " +
			"ignores:\n\n    #BERTH --image=python:3.12-slim\n\n" +
			"Such lines may also have --set and --secret. docs/guide/from-elsewhere.md lists the differences to " +
			"Slurm.\n\n" +
			waitHelp,
		Example: "  berth sbatch train.sh\n  berth sbatch --image python:3.12-slim --time=2:00:00 train.sh --lr 0.1\n" +
			"  berth sbatch --print train.sh > train.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if wrap := cmd.Flags().Lookup("wrap"); wrap.Changed {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, a, args) },
	}
	f.register(cmd)
	return cmd
}

// register adds the flags. The output format keeps the flags -o and --output, which sbatch has
// for the path of a log: Berth stores the log itself.
func (f *sbatchFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags behind the script belong to the script
	flags.StringVar(&f.image, "image", "", "container image (default: the one that the script names)")
	flags.BoolVar(&f.print, "print", false, "print the job file instead of submitting the job")
	flags.BoolVar(&f.ignoreUnsupported, "ignore-unsupported", false,
		"submit the job without the options that Berth refuses because their loss could change the results")
	flags.BoolVar(&f.noWorkdir, "no-workdir", false, "upload no folder")
	flags.StringArrayVar(&f.over.set, "set", nil,
		"field of the job file to override: PATH=VALUE, such as resources.shm_size=8GiB")
	flags.StringSliceVar(&f.over.secrets, "secret", nil, "secrets that the container receives, by name")
	f.submit.registerWaiting(cmd)
	for _, d := range sbatch.Definitions() {
		if d.Name == "output" {
			continue
		}
		flag := flags.VarPF(&slurmFlag{name: d.Name, list: &f.slurm}, d.Name, d.Short, d.Text)
		if d.Argument != sbatch.Required {
			flag.NoOptDefVal = noValue
		}
		flag.Hidden = !d.Translated()
	}
}

// noValue is the value that pflag passes for an option without one.
const noValue = "\x00"

// slurmFlag collects an option of sbatch, so that all options keep their order.
type slurmFlag struct {
	name  string
	value string
	list  *[]sbatch.Option
}

var _ pflag.Value = (*slurmFlag)(nil)

// String returns the last value.
func (f *slurmFlag) String() string { return f.value }

// Type returns the noun for the value in the help text.
func (f *slurmFlag) Type() string { return slurmType }

// slurmType is the type of the flags that berth sbatch has from Slurm.
const slurmType = "VALUE"

// Set adds the option to the list.
func (f *slurmFlag) Set(value string) error {
	if value == noValue {
		value = ""
	}
	f.value = value
	*f.list = append(*f.list, sbatch.Option{Name: f.name, Value: value})
	return nil
}

// run translates a script and submits the job, or does with it as the flags say.
func (f *sbatchFlags) run(cmd *cobra.Command, a *app, args []string) error {
	script, args, err := f.script(cmd.Context(), a, args)
	if err != nil {
		return err
	}
	folder, err := f.folder(a, script)
	if err != nil {
		return err
	}
	r := sbatch.Translate(script, sbatch.Settings{Command: f.slurm, Args: args, Image: f.image, Folder: folder,
		Now: a.now(), Lookup: a.lookup})
	if err := f.judge(a, script.Name, r); err != nil {
		return err
	}
	job := r.Job
	if err := f.override(script, &job); err != nil {
		return err
	}
	if err := jobfile.Check(job); err != nil {
		return err
	}
	later := scheduleFlags{}
	if !r.Begin.IsZero() && r.Begin.After(a.now()) {
		later.at = r.Begin.UTC().Format("2006-01-02T15:04:05Z")
	}
	f.submit.wait = r.Wait
	switch {
	case f.print:
		if later.at != "" {
			a.say("%s: note: a job file cannot hold a start time; submit it with --at %s", script.Name, later.at)
		}
		return printJobFile(a, script.Name, job, f.remarks(script.Name, r))
	case r.TestOnly:
		return planJob(cmd.Context(), a, job, nil)
	}
	if err := f.submit.check(); err != nil {
		return err
	}
	if later.at != "" {
		return submitLater(cmd.Context(), a, work{job: &jobfile.File{Spec: job}, base: "."}, later, f.submit)
	}
	return submitJob(cmd.Context(), a, job, nil, f.submit)
}

// script reads the script, or makes one of the command of --wrap, and returns it with its
// arguments.
func (f *sbatchFlags) script(ctx context.Context, a *app, args []string) (*sbatch.Script, []string, error) {
	i := slices.IndexFunc(f.slurm, func(o sbatch.Option) bool { return o.Name == "wrap" })
	if i >= 0 {
		s, err := sbatch.Parse("wrap", "#!/bin/sh\n"+f.slurm[i].Value+"\n")
		if err != nil {
			return nil, nil, usagef("--wrap: %v", err)
		}
		return s, nil, nil
	}
	src, shown, err := a.readFile(ctx, "script", args[0])
	if err != nil {
		return nil, nil, err
	}
	if len(src) > sbatch.MaxBytes {
		return nil, nil, usagef("%s has more than %d bytes, which is the limit of an argument of a container; move a "+
			"part of it into a second file of its folder", shown, sbatch.MaxBytes)
	}
	s, err := sbatch.Parse(shown, string(src))
	if err != nil {
		return nil, nil, &usageError{message: err.Error()}
	}
	return s, args[1:], nil
}

// folder returns the absolute path of the folder to upload, or "". It refuses the home folder
// unless --chdir names it: the home folder holds keys and more data than a job needs.
func (f *sbatchFlags) folder(a *app, script *sbatch.Script) (string, error) {
	if f.noWorkdir {
		return "", nil
	}
	chdir := script.Chdir(f.slurm)
	folder, err := filepath.Abs(chdir)
	if err != nil {
		return "", usagef("find the current folder: %v", err)
	}
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return "", &usageError{message: fmt.Sprintf("--chdir: there is no folder %s on this machine", folder),
			hint: "the folder is uploaded from here; name one of this machine, or pass --no-workdir"}
	}
	if chdir == "" && (folder == filepath.Clean(a.home) || folder == string(filepath.Separator)) {
		return "", &usageError{message: "berth sbatch uploads the current folder, and this is " + folder,
			hint: "change to the folder of the script, name one by --chdir, or pass --no-workdir"}
	}
	return folder, nil
}

// judge prints the notes, and refuses the script if it has faults, or options whose loss could
// change the results.
func (f *sbatchFlags) judge(a *app, name string, r sbatch.Result) error {
	for _, n := range r.Notes {
		a.say("%s", findingText(name, "note: ", n))
	}
	faults := slices.Clone(r.Wrong)
	if f.ignoreUnsupported {
		for _, n := range r.Refused {
			a.say("%s", findingText(name, "ignored: ", n))
		}
	} else {
		faults = append(faults, r.Refused...)
	}
	if len(faults) == 0 {
		return nil
	}
	slices.SortStableFunc(faults, func(x, y sbatch.Finding) int { return x.Line - y.Line })
	lines := make([]string, len(faults))
	for i, n := range faults {
		lines[i] = findingText(name, "", n)
	}
	e := &usageError{message: strings.Join(lines, "\nberth: ")}
	if len(r.Refused) > 0 && len(r.Wrong) == 0 {
		e.hint = "change the script, or pass --ignore-unsupported to submit the job without this"
	}
	return e
}

// findingText returns a finding as one line, with its place.
func findingText(name, kind string, f sbatch.Finding) string {
	where := ""
	if f.Line > 0 {
		where = fmt.Sprintf("%s:%d: ", name, f.Line)
	}
	if f.What == name {
		return oneLine(fmt.Sprintf("%s: %s%s", name, kind, f.Text))
	}
	return oneLine(where + kind + f.What + ": " + f.Text)
}

// override applies the lines with #BERTH, and then the flags.
func (f *sbatchFlags) override(script *sbatch.Script, job *spec.Job) error {
	var own overrides
	for _, o := range script.Own {
		switch o.Name {
		case "set":
			own.set = append(own.set, o.Value)
		case "secret":
			own.secrets = append(own.secrets, strings.Split(o.Value, ",")...)
		}
	}
	if err := own.apply(job); err != nil {
		return err
	}
	return f.over.apply(job)
}

// remarks returns the findings for the head of a printed job file.
func (f *sbatchFlags) remarks(name string, r sbatch.Result) (list []string) {
	for _, n := range r.Notes {
		list = append(list, findingText(name, "note: ", n))
	}
	for _, n := range r.Refused {
		list = append(list, findingText(name, "ignored: ", n))
	}
	return list
}
