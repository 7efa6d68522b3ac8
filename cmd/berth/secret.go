package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/spec"
)

// newSecret builds "berth secret". Secrets belong to the caller's tenant. No call of the
// API returns a value.
func newSecret(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "secret", Short: "Set, list and delete secrets for jobs"}
	cmd.AddCommand(newSecretSet(a), newSecretList(a), newSecretDelete(a))
	return cmd
}

// newSecretSet builds "berth secret set" over POST /v1/secrets, which creates a secret or
// replaces its value. So a repeated call has the same result.
func newSecretSet(a *app) *cobra.Command {
	// The value is no argument and no flag, since other users can read both in the list of
	// processes.
	var file string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Create a secret, or replace its value",
		Long: "Set reads the value from standard input, without the newline at its end, or byte for byte from a " +
			"file.\n" +
			"The value is never an argument, since other users of this machine could read it, and no command shows\n" +
			"it again. Jobs list it in secrets; attempts that have started keep the old value.",
		Example: "  berth secret set HF_TOKEN < token.txt\n" +
			"  printf %s \"$USER:$PASSWORD\" | berth secret set REGISTRY_LOGIN",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSecrets,
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := readSecretValue(cmd.Context(), a, args[0], file)
			if err != nil {
				return err
			}
			n := spec.NewSecretValue{Name: args[0], Value: value}
			// Validated before the call: a value that is too large must not be sent first.
			if faults := n.Validate(); len(faults) > 0 {
				return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec, Fields: faults}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			s, created, err := c.SetSecret(cmd.Context(), n)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return a.show(view{body: s, names: []string{s.Name}, table: func(bool) error {
				// Status 200 or 201: the sentence warns a user who meant to create a new
				// secret.
				words := "replaced the value of"
				if created {
					words = "created"
				}
				_, err := fmt.Fprintf(a.out, "%s secret %s\n", words, s.Name)
				return err
			}})
		},
	}
	cmd.Flags().StringVar(&file, "from-file", "", "file with the value, stored byte for byte")
	return cmd
}

// readSecretValue reads a value from a file byte for byte, else from the terminal or
// standard input without the newline at its end, since echo and editors add one. Little
// more than the largest value is read, so that validation can refuse a larger one without
// holding all of it.
func readSecretValue(ctx context.Context, a *app, name, file string) (spec.Sensitive, error) {
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", usagef("read the value of %s: %v", name, err)
		}
		defer f.Close()
		value, err := io.ReadAll(io.LimitReader(f, spec.MaxSecretBytes+1))
		if err != nil {
			return "", usagef("read the value of %s: %v", name, err)
		}
		return spec.Sensitive(value), nil
	}
	var value []byte
	var err error
	// On a terminal the value is typed without echo; readSecret ends at the newline.
	if a.readSecret != nil {
		fmt.Fprintf(a.err, "value of %s: ", name)
		value, err = a.readSecret(ctx)
		fmt.Fprintln(a.err)
	} else {
		// One byte beyond the limit, and two for a newline that is removed below.
		value, err = untilDone(ctx, func() ([]byte, error) {
			return io.ReadAll(io.LimitReader(a.in, spec.MaxSecretBytes+3))
		})
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", usagef("read the value of %s: %v", name, err)
	}
	return spec.Sensitive(strings.TrimSuffix(strings.TrimSuffix(string(value), "\n"), "\r")), nil
}

// newSecretList builds "berth secret list" over GET /v1/secrets, which returns names and
// times.
func newSecretList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the names of your tenant's secrets",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Secrets(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			names := make([]string, len(list.Items))
			t := &table{screen: a.outTerm, head: []string{"NAME", "AGE", "VALUE SET"}}
			for i, s := range list.Items {
				names[i] = s.Name
				t.add(s.Name, since(&s.CreatedAt, a.now()), ago(s.UpdatedAt, a.now()))
			}
			return a.show(view{body: list, names: names, table: func(bool) error {
				if len(names) == 0 {
					a.say("no secrets")
					return nil
				}
				return t.write(a.out)
			}})
		},
	}
}

// newSecretDelete builds "berth secret delete" over DELETE /v1/secrets/{name}.
func newSecretDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Delete a secret; waiting jobs that name it will fail",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSecrets,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if err := c.DeleteSecret(cmd.Context(), args[0]); err != nil {
				return a.failed(cmd.Context(), err)
			}
			_, err = fmt.Fprintf(a.out, "deleted secret %s\n", args[0])
			return err
		},
	}
}
