// Package flags defines the flags that Berth's programs share: a flag has the same
// meaning in every program, and an environment variable of its own. Flags of one
// program alone are defined in its folder below cmd.
//
// The one rule to know: the command line takes precedence over the environment, and the environment over
// the file of --settings-file.
package flags

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// The annotations of two names of one flag: each has the other name as its value.
const (
	former  = "former"  // of the present name
	present = "present" // of the former name
)

// Renamed registers the former name of the registered flag name, for one version after the
// change. The help does not show the former name, and its use prints a warning.
func Renamed(f *pflag.FlagSet, old, name string) {
	now := f.Lookup(name)
	then := *now
	then.Name, then.Hidden, then.Deprecated = old, true, "use --"+name
	then.Annotations = map[string][]string{present: {name}}
	f.AddFlag(&then)
	now.Annotations = map[string][]string{former: {old}}
}

// FromEnvironment sets every flag that the command line lacks and a variable of the
// environment has, and reports every fault: BERTH_DATABASE_URL sets --database-url. The
// variable of a flag's present name precedes that of the former name.
func FromEnvironment(f *pflag.FlagSet, lookup func(string) (string, bool)) error {
	typed := map[string]bool{} // flags of the command line, under both names
	f.Visit(func(flag *pflag.Flag) {
		typed[flag.Name] = true
		for _, other := range slices.Concat(flag.Annotations[former], flag.Annotations[present]) {
			typed[other] = true
		}
	})
	var faults []error
	set := func(flag *pflag.Flag) {
		name := "BERTH_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, ok := lookup(name)
		if !ok || typed[flag.Name] || flag.Name == "help" || flag.Name == "version" {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Annotations[present] != nil {
			set(flag)
		}
	})
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Annotations[present] == nil {
			set(flag)
		}
	})
	return errors.Join(faults...)
}
