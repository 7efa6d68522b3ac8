// Package flags is what the command lines of Berth's programs have in common:
// flags of the same name mean the same in all of them, and each has a variable
// of the environment. Settings of one program alone are in its folder below cmd.
//
// The one rule to know: what is typed wins over the environment.
package flags

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"
)

// Temporal declares where Temporal is; what the variables hold is the default.
func Temporal(f *pflag.FlagSet, address, namespace *string) {
	f.StringVar(address, "temporal-address", *address, "Temporal's frontend")
	f.StringVar(namespace, "temporal-namespace", *namespace, "Temporal namespace of the workflows")
}

// Collector declares who is told of traces.
func Collector(f *pflag.FlagSet, endpoint *string) {
	f.StringVar(endpoint, "otlp-endpoint", "", "OpenTelemetry collector that is told of jobs as traces, as http://HOST:4318; the usual variables (OTEL_EXPORTER_OTLP_ENDPOINT and others) do as well")
}

// LogLevel declares from what level on is logged; what l holds is the default.
func LogLevel(f *pflag.FlagSet, l *slog.Level) {
	f.Var((*level)(l), "log-level", "debug, info, warn or error")
}

type level slog.Level

func (l *level) String() string { return strings.ToLower(slog.Level(*l).String()) }
func (l *level) Type() string   { return "string" }

func (l *level) Set(s string) error {
	if err := (*slog.Level)(l).UnmarshalText([]byte(s)); err != nil {
		return errors.New("allowed are debug, info, warn, error")
	}
	return nil
}

// FromEnvironment sets every flag that was not given and has a variable, and
// reports every fault: BERTH_DATABASE_URL is --database-url.
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
