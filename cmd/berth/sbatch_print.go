package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"berth/internal/lib/jobfile"
	"berth/spec"
)

// printJobFile writes a job as a job file, with remarks as comments at its head.
func printJobFile(a *app, script string, job spec.Job, remarks []string) error {
	text, err := jobFileText(job)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Translated from %s by berth sbatch; submit it with berth submit.\n", oneLine(script))
	for _, r := range remarks {
		fmt.Fprintf(&b, "# %s\n", r)
	}
	b.Write(text)
	_, err = fmt.Fprint(a.out, b.String())
	return err
}

// jobFileText renders a job as YAML, with texts of several lines as blocks. A block cannot
// represent every text, so the result is read again; if it means another job, all texts are
// quoted instead.
func jobFileText(job spec.Job) ([]byte, error) {
	want, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("print job file: %w", err)
	}
	var document yaml.MapSlice // keeps the order of the fields
	if err := yaml.UnmarshalWithOptions(want, &document, yaml.UseOrderedMap()); err == nil {
		text, err := yaml.MarshalWithOptions(document, yaml.UseLiteralStyleIfMultiline(true), yaml.IndentSequence(true))
		if err == nil && means(text, want) {
			return text, nil
		}
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, want, "", "  "); err != nil {
		return nil, fmt.Errorf("print job file: %w", err)
	}
	return append(indented.Bytes(), '\n'), nil // JSON is YAML
}

// means reports whether a job file describes the job with this JSON.
func means(text, want []byte) bool {
	file, err := jobfile.Parse("job.yaml", text)
	if err != nil {
		return false
	}
	got, err := json.Marshal(file.Spec)
	return err == nil && bytes.Equal(got, want)
}
