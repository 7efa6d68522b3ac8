package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pairsFlag is a flag KEY=VALUE that may be repeated. The text after the first = is the value, byte for byte: commas
// and line feeds separate nothing, unlike in a StringToString of pflag.
type pairsFlag struct {
	pairs  *map[string]string
	filter bool // two values of a key are an error
}

var _ pflag.Value = pairsFlag{}

// pairsVar adds a flag whose pairs go to a map, which is created for the first pair. The last value of a key counts.
func pairsVar(flags *pflag.FlagSet, pairs *map[string]string, name, short, usage string) {
	flags.VarP(pairsFlag{pairs: pairs}, name, short, usage+"; repeatable")
}

// filterVar is pairsVar for a flag that selects things by their labels. All pairs must match, so a second value of a
// key is an error: a command would act on more than was meant if the last one counted.
func filterVar(flags *pflag.FlagSet, pairs *map[string]string, name, short, usage string) {
	flags.VarP(pairsFlag{pairs: pairs, filter: true}, name, short, usage+"; repeatable")
}

// String returns the pairs in the order of their keys; "" without pairs.
func (f pairsFlag) String() string {
	if f.pairs == nil {
		return ""
	}
	list := make([]string, 0, len(*f.pairs))
	for _, key := range slices.Sorted(maps.Keys(*f.pairs)) {
		list = append(list, key+"="+(*f.pairs)[key])
	}
	return strings.Join(list, " ")
}

// Type returns the name of the type in the help text.
func (f pairsFlag) Type() string { return "stringToString" }

// Set adds one pair.
func (f pairsFlag) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return errors.New("write KEY=VALUE, and repeat the flag for further pairs")
	}
	if before, given := (*f.pairs)[key]; f.filter && given && value != before {
		return fmt.Errorf("%s has the value %q in another --label, and nothing matches both", key, before)
	}
	if *f.pairs == nil {
		*f.pairs = map[string]string{}
	}
	(*f.pairs)[key] = value
	return nil
}

// refuseEmpty returns a usage error for a flag of names that was given without a value, as from an unset variable of a
// script: the command would act as if the flag were not there, on more than was meant.
func refuseEmpty(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		f := cmd.Flags().Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		text := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			text = strings.Join(list.GetSlice(), "")
		}
		if text == "" {
			return &usageError{message: "--" + name + " is empty",
				hint: "give a value, or leave the flag out"}
		}
	}
	return nil
}
