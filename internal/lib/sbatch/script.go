package sbatch

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

// Option is an option of sbatch as a user wrote it.
type Option struct {
	Name  string // long name, without dashes
	Value string // "" without a value
	Line  int    // of the script, from 1; 0: the command line
}

// String returns the option as it would be typed.
func (o Option) String() string {
	if o.Value == "" {
		return "--" + o.Name
	}
	return "--" + o.Name + "=" + o.Value
}

// Finding is one line about a script: an option without a counterpart, or a fault.
type Finding struct {
	Line int    // of the script, from 1; 0: the command line
	What string // the option or the word of the script that the finding is about
	Text string // the reason, and the alternative
}

// Script is a batch script of which the options are read, and nothing is judged yet.
type Script struct {
	Name        string   // name of the file, or any other text for messages
	Text        string   // the whole script, as the container runs it
	Interpreter []string // path of the first line, with its argument if it has one
	Options     []Option // of the lines with #SBATCH, in their order
	Own         []Option // of the lines with #BERTH, in their order

	notes, refused, wrong []Finding
}

// MaxBytes is the largest script, in bytes. The script is one argument of the container's
// command, and Linux limits an argument.
const MaxBytes = 128<<10 - 1

// Chdir returns the folder in which the script shall run: the one of the command line, or else
// of the script, or "" if none is named.
func (s *Script) Chdir(command []Option) (folder string) {
	for _, list := range [][]Option{s.Options, command} {
		for _, o := range list {
			if o.Name == "chdir" {
				folder = o.Value
			}
		}
	}
	return folder
}

// directive is the start of a line with options of sbatch, and ownDirective of a line with
// options of berth sbatch, which Slurm takes for a comment.
const (
	directive    = "#SBATCH"
	ownDirective = "#BERTH"
)

// OwnOptions lists the options that lines with #BERTH may have.
var OwnOptions = []string{"image", "secret", "set"}

// Parse reads a script as sbatch does: options are in comments before the first command. An
// error means that Slurm would refuse the script as a whole; faults of single lines are
// findings of Translate.
func Parse(name, text string) (*Script, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, fmt.Errorf("%s is empty", name)
	case strings.ContainsRune(text, 0):
		return nil, fmt.Errorf("%s contains a NUL byte; a batch script is text", name)
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("%s is not UTF-8, so a job file cannot hold it; convert it with iconv", name)
	case strings.Contains(text, "\r\n"):
		return nil, fmt.Errorf("%s has line ends of DOS, which Slurm refuses as well; convert it with dos2unix", name)
	}
	first, _, _ := strings.Cut(text, "\n")
	line, ok := strings.CutPrefix(first, "#!")
	line = strings.TrimSpace(line)
	if !ok || !path.IsAbs(line) {
		return nil, fmt.Errorf("%s:1: %.100q names no interpreter; the first line of a batch script is #! and an "+
			"absolute path, such as #!/bin/bash", name, first)
	}
	s := &Script{Name: name, Text: text}
	// The kernel passes the rest of the line as one argument.
	program, argument, _ := strings.Cut(line, " ")
	s.Interpreter = []string{program}
	if argument = strings.TrimSpace(argument); argument != "" {
		s.Interpreter = append(s.Interpreter, argument)
	}
	s.header()
	return s, nil
}

// header reads the lines of options. The first line that is neither blank nor a comment ends
// the options; lines of options below would be lost in silence, so they are noted.
func (s *Script) header() {
	body := false
	for i, line := range strings.Split(s.Text, "\n") {
		n := i + 1
		trimmed := strings.TrimSpace(line)
		body = body || trimmed != "" && !strings.HasPrefix(trimmed, "#")
		rest, slurm := strings.CutPrefix(line, directive)
		own, ours := strings.CutPrefix(line, ownDirective)
		slurm, ours = slurm && separated(rest), ours && separated(own)
		switch {
		case slurm && body, ours && body:
			s.note(n, firstWords(trimmed), "options after the first command are ignored, as in Slurm")
		case slurm:
			s.Options = append(s.Options, s.read(n, rest, s.slurmOption)...)
		case ours:
			s.Own = append(s.Own, s.read(n, own, s.ownOption)...)
		case strings.HasPrefix(trimmed, directive+" ") && !body:
			s.note(n, firstWords(trimmed), "the line does not begin with "+directive+", so it is a comment, as in "+
				"Slurm")
		case strings.HasPrefix(line, "#PBS ") && !body:
			s.refuse(n, firstWords(line), "only lines with #SBATCH are read; write this option as one")
		}
	}
}

// separated reports whether a directive ends before rest: #SBATCHES is none.
func separated(rest string) bool { return rest == "" || rest[0] == ' ' || rest[0] == '\t' }

// firstWords returns the start of a line for a message.
func firstWords(line string) string {
	const most = 60
	if r := []rune(line); len(r) > most {
		return string(r[:most]) + "…"
	}
	return line
}

// read splits the rest of a line into words and groups the words into options.
func (s *Script) read(line int, rest string, one func(int, []string) (Option, int)) (options []Option) {
	list, err := split(rest)
	if err != nil {
		s.fault(line, firstWords(strings.TrimSpace(rest)), err.Error())
		return nil
	}
	for len(list) > 0 {
		o, used := one(line, list)
		list = list[used:]
		if o.Name != "" {
			options = append(options, o)
		}
	}
	return options
}

// slurmOption reads the option at the start of the words, and returns the number of words
// that belong to it. An option with a fault has no name.
func (s *Script) slurmOption(line int, list []string) (Option, int) {
	word := list[0]
	switch {
	case strings.HasPrefix(word, "--") && len(word) > 2:
		name, value, given := strings.Cut(word[2:], "=")
		d, known := find(name)
		if !known {
			return s.unknown(line, list)
		}
		return s.option(line, list, d, value, given)
	case strings.HasPrefix(word, "-") && len(word) > 1 && word != "--":
		d, known := findShort(word[1:2])
		if !known {
			return s.unknown(line, list)
		}
		if d.Argument == NoArgument && len(word) > 2 {
			// Several letters without values in one word: the next one follows.
			list[0] = "-" + word[2:]
			return Option{Name: d.Name, Line: line}, 0
		}
		return s.option(line, list, d, word[2:], len(word) > 2)
	case word == "hetjob" || word == "packjob":
		s.refuse(line, word, "a job of Berth has equal members; submit a pipeline or two jobs")
	default:
		s.fault(line, word, "is not an option; options begin with a dash")
	}
	return Option{}, 1
}

// option completes an option that has an entry in the table.
func (s *Script) option(line int, list []string, d Definition, value string, given bool) (Option, int) {
	o := Option{Name: d.Name, Value: value, Line: line}
	switch {
	case d.Argument == NoArgument && given:
		s.fault(line, o.String(), "takes no value")
		return Option{}, 1
	case d.Argument == Required && !given && len(list) == 1, d.Argument == Required && given && value == "":
		s.fault(line, "--"+d.Name, "needs a value")
		return Option{}, 1
	case d.Argument == Required && !given:
		o.Value = list[1]
		return o, 2
	}
	return o, 1
}

// unknown refuses an option without an entry in the table, with the word behind it if that
// may be its value.
func (s *Script) unknown(line int, list []string) (Option, int) {
	used, what := 1, list[0]
	if len(list) > 1 && !strings.HasPrefix(list[1], "-") {
		used, what = 2, what+" "+list[1]
	}
	text := "is not an option of sbatch that Berth knows"
	name, _, _ := strings.Cut(strings.TrimLeft(list[0], "-"), "=")
	if near := nearest(name); near != "" {
		text += "; did you mean --" + near + "?"
	}
	s.refuse(line, what, text)
	return Option{}, used
}

// nearest returns the option of which name is the beginning, if there is exactly one.
func nearest(name string) (found string) {
	for _, d := range Definitions() {
		if len(name) < 2 || !strings.HasPrefix(d.Name, name) {
			continue
		}
		if found != "" {
			return ""
		}
		found = d.Name
	}
	return found
}

// ownOption reads an option of a line with #BERTH.
func (s *Script) ownOption(line int, list []string) (Option, int) {
	name, value, given := strings.Cut(strings.TrimPrefix(list[0], "--"), "=")
	for _, own := range OwnOptions {
		switch {
		case list[0] != "--"+own && !strings.HasPrefix(list[0], "--"+own+"="):
		case given && value != "":
			return Option{Name: name, Value: value, Line: line}, 1
		case !given && len(list) > 1:
			return Option{Name: name, Value: list[1], Line: line}, 2
		default:
			s.fault(line, list[0], "needs a value")
			return Option{}, 1
		}
	}
	s.fault(line, ownDirective+" "+list[0], "allowed are --"+strings.Join(OwnOptions, ", --"))
	return Option{}, 1
}

func (s *Script) note(line int, what, text string) {
	s.notes = append(s.notes, Finding{line, what, text})
}

func (s *Script) refuse(line int, what, text string) {
	s.refused = append(s.refused, Finding{line, what, text})
}

func (s *Script) fault(line int, what, text string) {
	s.wrong = append(s.wrong, Finding{line, what, text})
}

// split splits a line into words by blanks. Quotes and backslashes protect blanks and #; an
// unprotected # begins a comment. Slurm cuts a word there, which would lose its end in silence.
func split(line string) (list []string, err error) {
	var word strings.Builder
	begun, quote, escaped := false, rune(0), false
	end := func() {
		if begun {
			list = append(list, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			begun, escaped = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			begun, quote = true, r
		case r == '#' && begun:
			return nil, fmt.Errorf("has a # in a word, where Slurm begins a comment; write a blank before it, or \\#")
		case r == '#':
			return list, nil
		case r == ' ' || r == '\t' || r == '\r':
			end()
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("has a quote %c without an end", quote)
	}
	end()
	return list, nil
}
