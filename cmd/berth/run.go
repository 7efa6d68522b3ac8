package main

import (
	"encoding/json"
	"errors"
	"path"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/lib/jobfile"
	"berth/spec"
)

// runFlags are the flags of berth run, each a field of the job file. Texts with a unit stay
// texts here; spec parses them. Empty values mean the defaults of the job file.
type runFlags struct {
	workdir                                        string
	name, image, cpus, memory, disk, gpus, gpuType string
	priority, timeLimit, checkpoint                string
	labels                                         map[string]string
	maxAttempts, members                           int
}

// newRun builds "berth run". The command builds a spec from flags and submits the spec as
// berth submit does: there is one path to the server.
func newRun(a *app) *cobra.Command {
	flags := submitFlags{wait: true, waits: true}
	var r runFlags
	var over overrides
	cmd := &cobra.Command{
		Use:   "run --image IMAGE [flags] [-- COMMAND [ARG...]]",
		Short: "Submit a job without a file and follow it to its end",
		Long: "Run submits a job described by flags instead of a job file, waits for its end, as with --wait of the\n" +
			"other commands, and exits with a code for it: 0, 1 if the job failed, 5 if canceled. Ctrl-C ends\n" +
			"the command and not the job. --detach prints the job's id and returns at once.\n\n" + waitHelp,
		Example: "  berth run --image python:3.12-slim --cpus 2 -- python -c 'print(1)'\n" +
			"  id=$(berth run --detach --image python:3.12-slim -- python train.py)",
		Args: func(cmd *cobra.Command, args []string) error {
			// The container's command may contain flags of its own, so it must follow --.
			// ArgsLenAtDash is the number of arguments before --, or -1 without one.
			if at := cmd.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return &usageError{message: "the container's command must follow --"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.wait = flags.wait && !flags.detach
			if err := flags.check(); err != nil {
				return err
			}
			for _, name := range []string{"members", "max-attempts"} {
				// In a spec 0 means the default. An explicit 0 is more likely an error of a
				// script.
				if v, _ := cmd.Flags().GetInt(name); cmd.Flags().Changed(name) && v == 0 {
					return &usageError{message: "--" + name + " 0 is out of range; allowed: 1 or more"}
				}
			}
			jobSpec, err := r.spec(args)
			if err != nil {
				return err
			}
			if err := over.apply(&jobSpec); err != nil {
				return err
			}
			// Validated here as a job file is, so that all faults appear at once, without a
			// call.
			if err := jobfile.Check(jobSpec); err != nil {
				return err
			}
			return submitJob(cmd.Context(), a, jobSpec, nil, flags)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.image, "image", "", "container image (required)")
	f.StringVar(&r.name, "name", "", "job name (default: derived from the image)")
	f.StringVar(&r.workdir, "workdir", "", "local folder to upload; it is mounted at /workspace")
	f.StringVar(&r.cpus, "cpus", "", "CPU cores, such as 0.5 (default 1)")
	f.StringVar(&r.memory, "memory", "", "memory, such as 512MiB (default 2GiB)")
	f.StringVar(&r.disk, "disk", "", "disk space, such as 10GiB")
	f.IntVar(&r.members, "members", 0,
		"number of containers that start together and reach each other (default 1); resources are per container")
	f.StringVar(&r.gpus, "gpus", "", "number of GPUs, or a share of one such as 0.25")
	f.StringVar(&r.gpuType, "gpu-type", "", "acceptable GPU models, such as H100,A100")
	over.register(cmd)
	f.Lookup("env").Usage = "environment variables of the container: KEY=VALUE; repeatable"
	f.Lookup("set").Usage = "field of the job file without a flag: PATH=VALUE, such as checkpoint.keep=5"
	f.Lookup("secret").Usage = "secrets that the container receives, by name"
	pairsVar(f, &r.labels, "label", "l", "labels of the job: KEY=VALUE")
	f.StringVar(&r.priority, "priority", "", "priority: low, normal, high, or 0 to 1000 (default normal)")
	f.StringVar(&r.timeLimit, "time-limit", "", "time limit of an attempt, such as 4h")
	f.StringVar(&r.checkpoint, "checkpoint", "", "checkpoint folder in the container")
	f.IntVar(&r.maxAttempts, "max-attempts", 0, "attempts that may fail by the job's own fault (default 1)")
	_ = cmd.MarkFlagRequired("image")
	flags.register(cmd)
	f.BoolVarP(&flags.detach, "detach", "d", false, "print the job's id and return at once, as --wait=false")
	cmd.MarkFlagsMutuallyExclusive("detach", "wait")
	return cmd
}

// spec converts the flags into a job, with the parsers of the job file. The error joins the
// faults of all flags.
func (r runFlags) spec(command []string) (spec.Job, error) {
	s := spec.Job{Name: r.name, Image: r.image, Workdir: r.workdir, Command: command, Labels: r.labels}
	s.Retry.MaxAttempts, s.Members = r.maxAttempts, r.members
	if s.Name == "" {
		s.Name = nameOf(r.image)
	}
	if r.gpuType != "" {
		s.Resources.GPUType = strings.Split(r.gpuType, ",")
	}
	if r.checkpoint != "" {
		s.Checkpoint = &spec.CheckpointPolicy{Path: r.checkpoint}
	}
	var faults []error
	s.Resources.CPUs = read[spec.MilliCPU](&faults, "cpus", r.cpus)
	s.Resources.Memory = read[spec.MiB](&faults, "memory", r.memory)
	s.Priority = read[spec.Priority](&faults, "priority", r.priority)
	if v := read[spec.MiB](&faults, "disk", r.disk); v != nil {
		s.Resources.Disk = *v
	}
	if v := read[spec.MilliGPU](&faults, "gpus", r.gpus); v != nil {
		s.Resources.GPUs = *v
	}
	if v := read[spec.Duration](&faults, "time-limit", r.timeLimit); v != nil {
		s.TimeLimit = *v
	}
	return s, errors.Join(faults...)
}

// read parses the text of a flag with the JSON parser of its type. An empty text gives nil.
// A fault is appended to faults, and the result is of no use then.
func read[T any, P interface {
	*T
	json.Unmarshaler
}](faults *[]error, flag, text string) *T {
	if text == "" {
		return nil
	}
	quoted, err := json.Marshal(text)
	v := new(T)
	if err == nil {
		err = P(v).UnmarshalJSON(quoted)
	}
	if err != nil {
		// A type's error may begin with the field's name, which the flag already states.
		*faults = append(*faults, usagef("--%s: %s", flag, strings.TrimPrefix(err.Error(), flag+" ")))
	}
	return v
}

// nameOf derives a job's name from the name of an image. For example,
// ghcr.io/me/Train_It:v2 gives train-it. The result consists of a-z, 0-9 and single dashes,
// at most 63 characters; other characters become dashes.
func nameOf(image string) string {
	base := path.Base(image)
	// Without digest and tag.
	base, _, _ = strings.Cut(base, "@")
	base, _, _ = strings.Cut(base, ":")
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(base), "-")
	name = strings.Trim(name, "-")
	return strings.TrimRight(name[:min(len(name), 63)], "-")
}
