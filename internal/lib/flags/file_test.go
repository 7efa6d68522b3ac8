package flags_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"berth/internal/lib/flags"
)

// program is the flags of a program for tests of files.
type program struct {
	address string
	keep    time.Duration
	share   float64
	quiet   bool
	roles   []string
	folders []string
	labels  map[string]string
}

func (p *program) flags(path string) *pflag.FlagSet {
	f := pflag.NewFlagSet("program", pflag.ContinueOnError)
	f.StringVar(&p.address, "server-address", "default:1", "")
	f.DurationVar(&p.keep, "keep-for", time.Minute, "")
	flags.Renamed(f, "hold-for", "keep-for")
	f.Float64Var(&p.share, "share", 0.5, "")
	f.BoolVar(&p.quiet, "quiet", false, "")
	f.StringSliceVar(&p.roles, "role", []string{"all"}, "")
	f.StringArrayVar(&p.folders, "folder", nil, "")
	f.StringToStringVar(&p.labels, "labels", nil, "")
	flags.File(f, path)
	return f
}

// load runs the program with a file of this text, "-" for none.
func load(t *testing.T, text string, env map[string]string, args ...string) (program, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	if text != "-" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var p program
	f := p.flags(path)
	f.SetOutput(&strings.Builder{})
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return p, flags.Load(f, f, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
}

func TestAFileSetsWhatFlagsAndVariablesLeave(t *testing.T) {
	t.Parallel()
	const text = `# comment
server-address: "file:1"
keep-for: 5m
share: 0.25
quiet: true
role: [api, "a,b"]
folder:
  - /one=x,y
  - /two
labels:
  zone: b
  note: a,b
`
	for name, c := range map[string]struct {
		text string
		env  map[string]string
		args []string
		want program
	}{
		"defaults": {text: "-",
			want: program{address: "default:1", keep: time.Minute, share: 0.5, roles: []string{"all"}}},
		"empty": {text: "# nothing\n",
			want: program{address: "default:1", keep: time.Minute, share: 0.5, roles: []string{"all"}}},
		"one key": {text: "quiet: true\n",
			want: program{address: "default:1", keep: time.Minute, share: 0.5, roles: []string{"all"}, quiet: true}},
		"file": {text: text, want: program{"file:1", 5 * time.Minute, 0.25, true, []string{"api", "a,b"},
			[]string{"/one=x,y", "/two"}, map[string]string{"zone": "b", "note": "a,b"}}},
		"variable before file, flag before both": {
			text: text,
			env:  map[string]string{"BERTH_SERVER_ADDRESS": "env:1", "BERTH_SHARE": "0.75", "BERTH_ROLE": "x"},
			args: []string{"--share=1", "--labels=k=v", "--folder=/three"},
			want: program{"env:1", 5 * time.Minute, 1, true, []string{"x"}, []string{"/three"},
				map[string]string{"k": "v"}}},
		"former name in a variable before the file": {
			text: "keep-for: 5m\n", env: map[string]string{"BERTH_HOLD_FOR": "7m"},
			want: program{address: "default:1", keep: 7 * time.Minute, share: 0.5, roles: []string{"all"}}},
		"former name in the file": {
			text: "hold-for: 5m\n",
			want: program{address: "default:1", keep: 5 * time.Minute, share: 0.5, roles: []string{"all"}}},
		"no file by flag": {text: text, args: []string{"--settings-file="},
			want: program{address: "default:1", keep: time.Minute, share: 0.5, roles: []string{"all"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := load(t, c.text, c.env, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.labels) == 0 {
				got.labels = nil
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("settings are %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestFaultsOfAFileNameLineAndKey(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"quiet: true\nserver-adress: x\n":          `.yaml:2: "server-adress" is not a setting; did you mean server-address?`,
		"server_address: x\n":                      `.yaml:1: "server_address" is not a setting; did you mean server-address?`,
		"zzzzzzzzzzzz: x\n":                        "the settings are the names of the flags",
		"settings-file: other.yaml\n":              `"settings-file" is not a setting`,
		"\nkeep-for: soon\n":                       `settings.yaml:2: invalid argument "soon"`,
		"keep-for:\n":                              "settings.yaml:1: keep-for: there is no value",
		"keep-for: [1m, 2m]\n":                     "keep-for: a list is not allowed",
		"keep-for: {a: b}\n":                       "keep-for: a mapping is not allowed",
		"role: [[a]]\n":                            "an item of a list",
		"quiet: true\nquiet: false\n":              "not YAML",
		"- quiet\n":                                "write settings as KEY: VALUE",
		"quiet: true\n---\nshare: 1\n":             "a second document",
		"quiet: [\n":                               "not YAML",
		"share: 2x\nquiet: maybe\nserver-adr: x\n": "settings.yaml:2: invalid argument",
	} {
		_, err := load(t, text, nil)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want %q", text, err, says)
		}
	}
	_, err := load(t, "share: 2x\nserver-adress: x\n", map[string]string{"BERTH_QUIET": "maybe"})
	for _, says := range []string{"settings.yaml:1", "settings.yaml:2", "BERTH_QUIET"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v; want all faults at once, also %s", err, says)
		}
	}
	_, err = load(t, "-", nil, "--settings-file=/nonexistent/x.yaml")
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/x.yaml") {
		t.Errorf("a named file that does not exist: %v", err)
	}
	if _, err := load(t, "-", map[string]string{"BERTH_SETTINGS_FILE": "/nonexistent/x.yaml"}); err == nil {
		t.Error("a file that a variable names, and that does not exist, is accepted")
	}
}

// The error of a file goes into logs, so it has no line of the file.
func TestAFaultOfAFileShowsNoValue(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3tvalue"
	for _, text := range []string{
		"server-address: " + secret + "\nquiet: [\n",
		"server-address: " + secret + "\n  quiet: true\n",
		"server-address: " + secret + "\nserver-address: " + secret + "\n",
		"server-address: \"" + secret + "\n",
		"server-address: {" + secret + "\n",
		"server-address: [" + secret + ", 1]\n",
		"server-address: &" + secret + " 1\nquiet: *other\n",
		"server-adress: " + secret + "\n",
		"server-address: x: " + secret + "\n",
		"server-address: @" + secret + "\n",
		secret + "\n",
	} {
		if _, err := load(t, text, nil); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v; want an error without the value", text, err)
		}
	}
}

// A command of a program has some of its flags: the keys of the others are known and ignored.
func TestACommandIgnoresSettingsOfOtherCommands(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(path, []byte("share: 1\nquiet: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all program
	f := pflag.NewFlagSet("command", pflag.ContinueOnError)
	quiet := f.Bool("quiet", false, "")
	flags.File(f, path)
	none := func(string) (string, bool) { return "", false }
	if err := flags.Load(f, all.flags(path), none); err != nil || !*quiet {
		t.Errorf("quiet is %v, %v", *quiet, err)
	}
}
