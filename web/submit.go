package web

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"berth"
	"berth/internal/lib/jobfile"
	"berth/spec"
	"berth/wire"
)

// submitView is the data of the page that takes a job file.
type submitView struct {
	File     string
	Key      string // idempotency key of this form: a second click makes no second job
	Problem  string // all faults of the file, one a line
	Plan     *wire.Plan
	Pipeline bool // it is one: it has no plan
	Name     string
	Ready    bool // the file can be submitted
}

// example is the file of an empty form.
const example = `name: hello
image: busybox
command: [sh, -c, "echo hello"]
resources: {cpus: 1, memory: 256MiB}
`

// submitPage shows an empty form, or one with the spec of a job.
func submitPage(ctx context.Context, v *visit) (result, error) {
	if !v.page.Reader.Acts() {
		return result{}, errReadsOnly(v)
	}
	view := submitView{File: example, Key: berth.NewSecret()}
	if from := v.query("from"); from != "" {
		j, err := v.api.Job(ctx, berth.JobID(from))
		if err != nil {
			return result{}, err
		}
		text, err := specPart(ctx, v, j)
		if err != nil {
			return result{}, err
		}
		view.File, _ = text.(string)
	}
	return result{template: "submit", title: "Submit", data: view}, nil
}

// submit plans or submits the file of a form. Faults are shown by line and field, as the command line
// shows them. A plan stores nothing, so a reader may plan a file any number of times before the submit.
func submit(ctx context.Context, v *visit) (result, error) {
	if !v.page.Reader.Acts() {
		return result{}, errReadsOnly(v)
	}
	view := submitView{File: v.r.PostFormValue("file"), Key: v.r.PostFormValue("key")}
	// A key of another length is not from submitPage. With a new key the form can be sent.
	if len(view.Key) != 64 {
		view.Key = berth.NewSecret()
	}
	view.File = strings.ReplaceAll(view.File, "\r\n", "\n") // as browsers send lines
	var err error
	var made *wire.Job
	if view.Pipeline = jobfile.Kind("pasted", []byte(view.File)) == "pipeline"; view.Pipeline {
		made, err = pastedPipeline(ctx, v, &view)
	} else {
		made, err = pastedJob(ctx, v, &view)
	}
	if made != nil && err == nil {
		return result{redirect: "/jobs/" + string(made.ID)}, nil
	}
	res := result{template: "submit", title: "Submit"}
	if e, ok := errors.AsType[*jobfile.Error](err); ok {
		view.Problem, res.status = e.Error(), http.StatusUnprocessableEntity
	} else if err != nil {
		code := berth.CodeOf(err)
		// Errors of these codes are about the file, or about a quota. The form stays, so that the
		// reader can correct the file. All others get the page for errors.
		if code != berth.CodeInvalid && code != berth.CodeCapacity && code != berth.CodeConflict {
			return result{}, err
		}
		view.Problem, res.status = problemText(err), http.StatusUnprocessableEntity
	}
	res.data = view
	return res, nil
}

// pastedJob plans a job, or submits it if the form says so. With the key of the form, a repeated submit
// returns the job of the first one.
func pastedJob(ctx context.Context, v *visit, view *submitView) (*wire.Job, error) {
	file, err := jobfile.Parse("pasted", []byte(view.File))
	if err != nil {
		return nil, err
	}
	if v.r.PostFormValue("do") == "submit" {
		j, _, err := v.api.Submit(ctx, file.Spec, view.Key)
		return &j, err
	}
	plan, err := v.api.Plan(ctx, file.Spec)
	if err == nil {
		view.Plan, view.Name, view.Ready = &plan, file.Spec.Name, true
	}
	return nil, err
}

// pastedPipeline reads a pipeline, and submits it if the form says so. There are no plans of pipelines.
func pastedPipeline(ctx context.Context, v *visit, view *submitView) (*wire.Job, error) {
	var p spec.Pipeline
	if err := jobfile.Decode("pasted", []byte(view.File), &p, func() []berth.FieldError {
		return p.WithDefaults().Validate()
	}); err != nil {
		return nil, err
	}
	if v.r.PostFormValue("do") == "submit" {
		j, _, err := v.api.SubmitPipeline(ctx, p, view.Key)
		return &j, err
	}
	view.Name, view.Ready = p.Name, true
	return nil, nil
}

// problemText is an error of the API with the faults of its fields. Each fault has a line, as on the
// command line.
func problemText(err error) string {
	lines := []string{sentence(messageOf(err))}
	if e, ok := errors.AsType[*berth.Error](err); ok {
		for _, f := range e.Fields {
			lines = append(lines, jobfile.Line(f))
		}
	}
	return strings.Join(lines, "\n")
}
