package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// oldest is the age in days from which the result of a database counts as unknown: the entries of
// the last months are missing.
const oldest = 120

// check is one run over some targets.
type check struct {
	database   string   // folder; "": there is none
	exceptions string   // file
	scanner    string   // path of govulncheck
	targets    []string // files of programs, or package patterns with source
	source     bool
	strict     bool
	now        time.Time
}

// verdict is a finding with the decision about it.
type verdict struct {
	finding
	red  bool
	note string
}

// report is the result of a check.
type report struct {
	database   string      // folder and date of the database
	warnings   []string    // not red
	faults     []string    // red, apart from findings
	verdicts   []verdict   // by entry
	unreached  []string    // entries of modules that are linked, in code that no program reaches
	exceptions []exception // in the order of the file
}

func (r *report) red() bool {
	return len(r.faults) > 0 || slices.ContainsFunc(r.verdicts, func(v verdict) bool { return v.red })
}

// run scans the targets and judges the findings. The error is for a check that could not run. A
// missing database is a warning, or with strict a fault.
func (c *check) run(ctx context.Context) (*report, error) {
	r := &report{}
	var err error
	if r.exceptions, err = readExceptions(c.exceptions); err != nil {
		return nil, err
	}
	if c.database == "" {
		c.doubt(r, "no database: set BERTH_VULNDB to a folder of the Go vulnerability database; nothing was checked")
		c.judgeExceptions(r, nil)
		return r, nil
	}
	if c.database, err = filepath.Abs(c.database); err != nil { // it becomes part of a URL
		return nil, err
	}
	date, err := databaseDate(c.database)
	if err != nil {
		return nil, err
	}
	age := int(c.now.Sub(date).Hours() / 24)
	r.database = fmt.Sprintf("%s of %s (%d days old)", c.database, date.Format(time.DateOnly), age)
	if age > oldest {
		c.doubt(r, fmt.Sprintf("the database is %d days old, more than %d: fetch a newer one", age, oldest))
	}
	found, err := c.scan(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if len(f.packages) == 0 {
			r.unreached = append(r.unreached, f.id)
			continue
		}
		r.verdicts = append(r.verdicts, c.judge(f, r.exceptions))
	}
	c.judgeExceptions(r, r.verdicts)
	return r, nil
}

// doubt reports that the result says less than it should.
func (c *check) doubt(r *report, text string) {
	if c.strict {
		r.faults = append(r.faults, text)
	} else {
		r.warnings = append(r.warnings, text)
	}
}

// judge decides whether an exception covers a finding.
func (c *check) judge(f finding, list []exception) verdict {
	i := slices.IndexFunc(list, func(e exception) bool { return e.covers(f) })
	if i < 0 {
		note := "no fixed version exists"
		if f.fixed != "" {
			note = "fixed in " + f.fixed
		}
		return verdict{finding: f, red: true, note: note + "; upgrade, or record an exception"}
	}
	e := list[i]
	for _, never := range e.NotReached {
		for _, p := range f.packages {
			if p.path == never || strings.HasPrefix(p.path, never+"/") {
				note := "the exception holds only while " + never + " is not reached"
				return verdict{finding: f, red: true, note: note}
			}
		}
	}
	if e.expired(c.now) {
		return verdict{finding: f, red: true, note: fmt.Sprintf("the exception ended on %s", e.Until)}
	}
	return verdict{finding: f, note: fmt.Sprintf("accepted until %s: %s", e.Until, e.Reason)}
}

// judgeExceptions reports exceptions that are expired or cover no finding. Without a scan the ends
// alone are known, and an exception that has ended is in doubt like the rest.
func (c *check) judgeExceptions(r *report, found []verdict) {
	for _, e := range r.exceptions {
		left := int(e.end().Sub(c.now).Hours() / 24)
		used := slices.ContainsFunc(found, func(v verdict) bool { return e.covers(v.finding) })
		switch {
		case r.database == "" && e.expired(c.now):
			c.doubt(r, fmt.Sprintf("the exception for %s ended on %s", e.ID, e.Until))
		case r.database != "" && !used:
			fault := fmt.Sprintf("the exception for %s in %s covers no finding: remove it", e.ID, e.Module)
			r.faults = append(r.faults, fault)
		case !e.expired(c.now) && left < 30:
			warning := fmt.Sprintf("the exception for %s ends in %d days, on %s", e.ID, left, e.Until)
			r.warnings = append(r.warnings, warning)
		}
	}
}

// scan runs govulncheck and merges its findings over all targets.
func (c *check) scan(ctx context.Context) ([]finding, error) {
	if len(c.targets) == 0 {
		return nil, errors.New("name the programs to check, or their packages with -source")
	}
	all := findings{}
	if c.source {
		args := append([]string{"-db", "file://" + c.database, "-format", "json"}, c.targets...)
		err := all.scan(ctx, "", c.scanner, args...)
		return all.sorted(), err
	}
	for _, target := range c.targets {
		if err := hasSymbols(target); err != nil {
			return nil, err
		}
		err := all.scan(ctx, filepath.Base(target), c.scanner,
			"-mode", "binary", "-db", "file://"+c.database, "-format", "json", target)
		if err != nil {
			return nil, err
		}
	}
	return all.sorted(), nil
}

// print writes the report for people: one line for each finding, then the packages in which
// programs reach the affected module.
func (r *report) print(out io.Writer) {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(out, "vulnerabilities: "+format+"\n", args...) }
	if r.database != "" {
		line("database %s", r.database)
	}
	for _, v := range r.verdicts {
		mark := "accepted"
		if v.red {
			mark = "RED"
		}
		line("%s %s in %s %s (%s), reached by %s",
			mark, v.id, v.module, v.version, v.summary, strings.Join(v.programs, ", "))
		line("    %s", v.note)
		line("    reached: %s", v.reached())
		for _, call := range v.calls {
			line("    %s", call)
		}
	}
	if len(r.unreached) > 0 {
		line("not reached: %s", strings.Join(r.unreached, ", "))
	}
	for _, w := range r.warnings {
		line("WARNING %s", w)
	}
	for _, f := range r.faults {
		line("RED %s", f)
	}
	if !r.red() && r.database != "" {
		line("ok")
	}
}
