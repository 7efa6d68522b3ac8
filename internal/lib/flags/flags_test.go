package flags_test

import (
	"log/slog"
	"strings"
	"testing"

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
