package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth/internal/lib/jobfile"
	"berth/internal/lib/sbatch"
)

const elsewherePage = guidePages + "/from-elsewhere.md"

// berthCells returns the code in the columns Berth of the tables of the page, by line.
func berthCells(t *testing.T) map[int][]string {
	t.Helper()
	cells := map[int][]string{}
	column := -1
	for i, line := range strings.Split(textOf(t, elsewherePage), "\n") {
		row, ok := strings.CutPrefix(line, "| ")
		if !ok {
			column = -1
			continue
		}
		fields := strings.Split(row, "|")
		if column < 0 {
			column = slices.IndexFunc(fields, func(f string) bool { return strings.TrimSpace(f) == "Berth" })
			continue
		}
		if strings.HasPrefix(row, "---") || column < 0 {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(fields[column], -1) {
			cells[i+1] = append(cells[i+1], m[1])
		}
	}
	return cells
}

// Each counterpart on the page is a command that the program parses, with its arguments, a
// field that the decoder of job files reads, or a variable of the container.
func TestEveryCounterpartOnThePageExists(t *testing.T) {
	t.Parallel()
	variables := textOf(t, filepath.Join(guidePages, "job-file.md"))
	variable := regexp.MustCompile(`^[A-Z]+_[A-Z_]+$`)
	commands, fields, named := 0, 0, 0
	for line, list := range berthCells(t) {
		for _, code := range list {
			switch {
			case strings.HasPrefix(code, "berth "):
				commands++
				cmd, err := parsed(code)
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s:%d: %s: %v", elsewherePage, line, code, err)
				}
			case variable.MatchString(code):
				named++
				if !strings.Contains(variables, "`"+code+"`") && !slices.Contains(sbatch.Variables, code) {
					t.Errorf("%s:%d: no container has the variable %s", elsewherePage, line, code)
				}
			case strings.Contains(code, ": "):
				fields++
				if _, err := jobfile.Parse("job.yaml", []byte(jobOf(code))); err != nil {
					t.Errorf("%s:%d: %v", elsewherePage, line, err)
				}
			}
		}
	}
	if commands < 60 || fields < 50 || named < 5 {
		t.Errorf("found %d commands, %d fields and %d variables; want at least 60, 50 and 5", commands, fields, named)
	}
}

// jobOf makes a job file of the fields in a cell: a mapping, or one field.
func jobOf(code string) string {
	inner, mapping := strings.CutPrefix(code, "{")
	inner = strings.TrimSuffix(inner, "}")
	if !mapping {
		inner = code
	}
	for _, field := range []string{"name", "image"} {
		if !strings.HasPrefix(code, field+":") {
			inner += ", " + field + ": x"
		}
	}
	return "{" + inner + "}"
}

// The page lists the options of sbatch that become a part of the job file, and the variables
// of the preamble.
func TestThePageNamesEachOptionAndVariableOfSlurm(t *testing.T) {
	t.Parallel()
	page := textOf(t, elsewherePage)
	for _, name := range sbatch.Variables {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("%s does not name %s", elsewherePage, name)
		}
	}
	for _, m := range regexp.MustCompile("`(SLURM_[A-Z_]+)`").FindAllStringSubmatch(page, -1) {
		if !slices.Contains(sbatch.Variables, m[1]) {
			t.Errorf("%s names %s, which no preamble sets", elsewherePage, m[1])
		}
	}
	trivial := []string{"parsable", "quiet", "verbose", "requeue", "wrap", "tasks-per-node", "cpus-per-gpu", "ntasks", "chdir"}
	for _, d := range sbatch.Definitions() {
		if d.Translated() && !slices.Contains(trivial, d.Name) && !strings.Contains(page, "--"+d.Name) {
			t.Errorf("%s does not name --%s", elsewherePage, d.Name)
		}
	}
}

// The commands of sbatch on the page are more than parsed: they translate a script.
func TestTheScriptsOnThePageAreTranslated(t *testing.T) {
	t.Parallel()
	script := write(t, "train.sh", "#!/bin/sh\n#SBATCH --mem=1G --export=NONE\n#BERTH --image=debian:12\ntrue\n")
	count := 0
	for _, m := range regexp.MustCompile("berth sbatch ([^`\n]*train\\.sh[^`\n]*)").FindAllStringSubmatch(textOf(t, elsewherePage), -1) {
		count++
		args := strings.Fields(strings.ReplaceAll(m[1], "train.sh", script))
		if out, messages, code := sbatchRun(t, append([]string{"--print"}, args...)...); code != 0 || !strings.Contains(out, "slurm_script") {
			t.Errorf("berth sbatch %s: exit code %d\n%s%s", m[1], code, out, messages)
		}
	}
	if count < 4 {
		t.Errorf("found %d commands; want at least 4", count)
	}
}
