package flags_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"berth/internal/lib/flags"
)

func TestEachFlagHasAVariableAndWinsOverIt(t *testing.T) {
	t.Parallel()
	env := map[string]string{"BERTH_LOG_LEVEL": "debug", "BERTH_TEMPORAL_ADDRESS": "env:1", "BERTH_OTLP_ENDPOINT": "http://env:1"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	parse := func(args ...string) (level slog.Level, address, namespace, collector string, err error) {
		level, address, namespace = slog.LevelWarn, "default:1", "default"
		f := pflag.NewFlagSet("x", pflag.ContinueOnError)
		flags.Temporal(f, &address, &namespace)
		flags.Collector(f, &collector)
		flags.LogLevel(f, &level)
		if err = f.Parse(args); err == nil {
			err = flags.FromEnvironment(f, lookup)
		}
		return level, address, namespace, collector, err
	}
	level, address, namespace, collector, err := parse("--temporal-address", "flag:1")
	if err != nil || level != slog.LevelDebug || address != "flag:1" || namespace != "default" || collector != "http://env:1" {
		t.Errorf("%v %s %s %s, %v", level, address, namespace, collector, err)
	}
	for arg, says := range map[string]string{"--log-level=loud": "--log-level", "--log-level=": "allowed are debug, info, warn, error"} {
		if _, _, _, _, err := parse(arg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", arg, err)
		}
	}
	env["BERTH_LOG_LEVEL"] = "loud"
	if _, _, _, _, err := parse(); err == nil || !strings.Contains(err.Error(), "BERTH_LOG_LEVEL: ") || !strings.Contains(err.Error(), "allowed are") {
		t.Errorf("a wrong variable: %v", err)
	}
}

func TestAFormerNameOfAFlagStillWorks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want time.Duration
		warn bool
	}{
		"neither":                      {want: time.Minute},
		"former name":                  {args: []string{"--old=2m"}, want: 2 * time.Minute, warn: true},
		"present name":                 {args: []string{"--new=3m"}, want: 3 * time.Minute},
		"former variable":              {env: map[string]string{"BERTH_OLD": "4m"}, want: 4 * time.Minute, warn: true},
		"both variables":               {env: map[string]string{"BERTH_OLD": "4m", "BERTH_NEW": "5m"}, want: 5 * time.Minute, warn: true},
		"flag before former variable":  {args: []string{"--new=3m"}, env: map[string]string{"BERTH_OLD": "4m"}, want: 3 * time.Minute},
		"former flag before variables": {args: []string{"--old=2m"}, env: map[string]string{"BERTH_NEW": "5m"}, want: 2 * time.Minute, warn: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := pflag.NewFlagSet("test", pflag.ContinueOnError)
			out := &strings.Builder{}
			f.SetOutput(out)
			got := f.Duration("new", time.Minute, "")
			flags.Renamed(f, "old", "new")
			if err := f.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			if err := flags.FromEnvironment(f, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok }); err != nil {
				t.Fatal(err)
			}
			if *got != c.want || strings.Contains(out.String(), "use --new") != c.warn {
				t.Errorf("it is %s, and the output is %q", *got, out)
			}
			if strings.Contains(f.FlagUsages(), "--old") {
				t.Error("the help shows the former name")
			}
		})
	}
}
