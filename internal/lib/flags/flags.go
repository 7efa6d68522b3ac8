// Package flags defines the flags that Berth's programs share: a flag has the same
// meaning in every program, and an environment variable of its own. Flags of one
// program alone are defined in its folder below cmd.
//
// The one rule to know: the command line takes precedence over the environment.
package flags

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"
)

// Temporal declares the address of Temporal; the variables hold the defaults.
func Temporal(f *pflag.FlagSet, address, namespace *string) {
	f.StringVar(address, "temporal-address", *address, "address of Temporal's frontend")
	f.StringVar(namespace, "temporal-namespace", *namespace, "Temporal namespace of the workflows")
}

// Collector declares the collector that receives traces.
func Collector(f *pflag.FlagSet, endpoint *string) {
	f.StringVar(endpoint, "otlp-endpoint", "",
		"OpenTelemetry collector that receives traces of jobs, such as http://HOST:4318; "+
			"the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT and others) are read too")
}

// LogLevel declares the log level; l holds the default.
func LogLevel(f *pflag.FlagSet, l *slog.Level) {
	f.Var((*level)(l), "log-level", "log level: debug, info, warn or error")
}

// level is a flag's value for a log level.
type level slog.Level

// String returns the level in lower case; Set accepts the result.
func (l *level) String() string { return strings.ToLower(slog.Level(*l).String()) }

// Type returns the type for the help text.
func (l *level) Type() string { return "string" }

// Set parses a level in any case of letters.
func (l *level) Set(s string) error {
	if err := (*slog.Level)(l).UnmarshalText([]byte(s)); err != nil {
		return errors.New("allowed are debug, info, warn, error")
	}
	return nil
}

// FromEnvironment sets every flag that the command line lacks and a variable of the
// environment has, and reports every fault: BERTH_DATABASE_URL sets --database-url.
func FromEnvironment(f *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var faults []error
	f.VisitAll(func(flag *pflag.Flag) {
		name := "BERTH_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, ok := lookup(name)
		if !ok || flag.Changed || flag.Name == "help" || flag.Name == "version" {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
	})
	return errors.Join(faults...)
}
