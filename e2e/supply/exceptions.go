package main

import (
	"fmt"
	"os"
	"time"

	"github.com/goccy/go-yaml"
)

// exception accepts one entry of the database in one module for a limited time.
type exception struct {
	ID     string `yaml:"id"`     // GO-2026-4883
	Module string `yaml:"module"` // path of the affected module
	Until  string `yaml:"until"`  // last day, YYYY-MM-DD in UTC
	Reason string `yaml:"reason"`
	// NotReached names packages, and with each the packages below it. The exception covers a finding
	// only while no program reaches any of them.
	NotReached []string `yaml:"not_reached"`
}

// readExceptions reads the file and refuses entries without an id, module, reason or end.
func readExceptions(name string) ([]exception, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the exceptions: %w", err)
	}
	var list []exception
	if err := yaml.UnmarshalWithOptions(raw, &list, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("read the exceptions in %s: %w", name, err)
	}
	seen := map[[2]string]bool{}
	for i, e := range list {
		switch _, err := time.Parse(time.DateOnly, e.Until); {
		case e.ID == "" || e.Module == "" || e.Reason == "":
			return nil, fmt.Errorf("%s: exception %d lacks an id, a module or a reason", name, i+1)
		case err != nil:
			return nil, fmt.Errorf("%s: exception %d, %s: until %q is not a date such as 2027-01-31",
				name, i+1, e.ID, e.Until)
		case seen[[2]string{e.ID, e.Module}]:
			return nil, fmt.Errorf("%s: exception %d repeats %s in %s", name, i+1, e.ID, e.Module)
		}
		seen[[2]string{e.ID, e.Module}] = true
	}
	return list, nil
}

func (e exception) covers(f finding) bool { return e.ID == f.id && e.Module == f.module }

// end is the moment after the last day.
func (e exception) end() time.Time {
	day, err := time.Parse(time.DateOnly, e.Until)
	if err != nil {
		panic("an exception without a valid end: " + e.Until) // readExceptions refuses it
	}
	return day.AddDate(0, 0, 1)
}

func (e exception) expired(now time.Time) bool { return !now.Before(e.end()) }
