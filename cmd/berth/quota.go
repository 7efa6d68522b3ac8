package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// newQuota builds "berth quota". A quota belongs to one tenant and bounds that tenant
// together with all tenants below it.
func newQuota(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "quota", Short: "Manage the quotas of tenants"}
	cmd.AddCommand(newQuotaList(a), newQuotaShow(a), newQuotaSet(a), newQuotaDelete(a))
	return cmd
}

// newQuotaList builds "berth quota list" over GET /v1/quotas.
func newQuotaList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List quotas; users see their own tenant's",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Quotas(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showQuotas(a, list)
		},
	}
}

// showQuotas prints quotas with the tenants' present use.
func showQuotas(a *app, list wire.Page[spec.Quota]) error {
	names := make([]string, len(list.Items))
	for i, q := range list.Items {
		names[i] = string(q.Tenant)
	}
	return a.show(view{body: list, names: names, table: func(bool) error {
		t := table{screen: a.outTerm, head: []string{"TENANT", "GUARANTEE", "LIMIT", "BORROWS", "RUNNING",
			"WAITING", "BUDGET"}}
		for _, q := range list.Items {
			budget := "-"
			if b := q.Budget; b != nil {
				budget = fmt.Sprintf("%.1f of %g GPU-hours in %s", spentOf(q), b.GPUHours, b.Period)
			}
			t.add(string(q.Tenant), amountsText(q.Guarantee), amountsText(q.Limit), string(q.Borrow),
				ofMost(runningOf(q), q.MaxRunning), ofMost(waitingOf(q), q.MaxQueued), budget)
		}
		return t.write(a.out)
	}})
}

// runningOf, waitingOf and spentOf read a tenant's use, which a server may leave out: 0
// then.
func runningOf(q spec.Quota) int {
	if q.Use == nil {
		return 0
	}
	return q.Use.Running
}

func waitingOf(q spec.Quota) int {
	if q.Use == nil {
		return 0
	}
	return q.Use.Waiting
}

// spentOf returns the GPU-hours spent in the present period of the budget.
func spentOf(q spec.Quota) float64 {
	if q.Use == nil {
		return 0
	}
	return q.Use.SpentGPUs
}

// ofMost formats a number with its limit; nil means no limit.
func ofMost(n int, most *int) string {
	if most == nil {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d of %d", n, *most)
}

// amount formats one amount of a quota in its own unit, "-" for a setting that is not set.
func amount[T fmt.Stringer](a *T) string {
	if a == nil {
		return "-"
	}
	return (*a).String()
}

// amountsText formats the amounts that are set, "-" for none.
func amountsText(a *spec.Amounts) string {
	if a == nil {
		return "-"
	}
	var parts []string
	if a.CPUs != nil {
		parts = append(parts, a.CPUs.String()+" CPUs")
	}
	if a.Memory != nil {
		parts = append(parts, a.Memory.String())
	}
	if a.GPUs != nil {
		parts = append(parts, a.GPUs.String()+" GPUs")
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// newQuotaShow builds "berth quota show" over GET /v1/quotas/{tenant}.
func newQuotaShow(a *app) *cobra.Command {
	return ofTenant(a, &cobra.Command{Use: "show TENANT", Short: "Show a tenant's quota and usage"},
		(*client.Client).Quota, showQuota)
}

// showQuota prints one quota with the tenant's use. The rate of submits, the greatest
// priority and the budget are shown only if they are set.
func showQuota(a *app, q spec.Quota) error {
	return a.show(view{body: q, names: []string{string(q.Tenant)}, table: func(bool) error {
		s := sheet{screen: a.outTerm}
		s.add("tenant", string(q.Tenant))
		s.add("guarantee", amountsText(q.Guarantee))
		s.add("limit", amountsText(q.Limit))
		s.add("borrows", string(q.Borrow))
		s.add("running", ofMost(runningOf(q), q.MaxRunning)+" jobs")
		s.add("waiting", ofMost(waitingOf(q), q.MaxQueued)+" jobs")
		if q.SubmitRPS != nil {
			s.add("submits", fmt.Sprintf("at most %g a second", *q.SubmitRPS))
		}
		if q.MaxPriority != nil {
			s.add("priority", fmt.Sprintf("at most %s", q.MaxPriority))
		}
		if b := q.Budget; b != nil {
			s.add("budget", fmt.Sprintf("%.1f of %g GPU-hours spent in %s, since %s", spentOf(q), b.GPUHours,
				b.Period, stamp(b.Since, a.now())))
		}
		if len(q.Images) > 0 {
			s.add("images", strings.Join(q.Images, ", "))
		}
		for _, r := range q.ImageSignatures {
			s.add("signatures", signatureText(r))
		}
		if q.AnyUser != nil {
			s.add("any user", strconv.FormatBool(*q.AnyUser))
		}
		for _, l := range storageOf(q) {
			s.add(l.name, l.text)
		}
		if q.Use != nil {
			s.add("holding", amountsText(&q.Use.Holding))
		}
		return s.write(a.out)
	}})
}

// quotaFlags lists the settings of a quota as flags. All flags are strings, since every
// setting accepts "none", which lifts it; set parses the text into the quota. The table
// registers the flags and applies them, so that the two cannot differ.
var quotaFlags = []struct {
	name, usage string
	set         func(q *spec.Quota, text string) error
}{
	{"guarantee-cpus", "guaranteed CPU cores, reclaimed by preemption if lent out", amountFlag(guarantee, cpus)},
	{"guarantee-memory", "guaranteed memory, such as 256GiB", amountFlag(guarantee, memory)},
	{"guarantee-gpus", "guaranteed GPUs", amountFlag(guarantee, gpus)},
	{"limit-cpus", "maximum CPU cores in use", amountFlag(limit, cpus)},
	{"limit-memory", "maximum memory in use", amountFlag(limit, memory)},
	{"limit-gpus", "maximum GPUs in use", amountFlag(limit, gpus)},
	{"borrow", "jobs that may use idle capacity beyond the guarantee: any, preemptible, none",
		func(q *spec.Quota, text string) error {
			q.Borrow = spec.Borrow(text) // here "none" is a value and lifts nothing
			return nil
		}},
	{"max-running", "maximum number of running jobs",
		func(q *spec.Quota, text string) error { return count(&q.MaxRunning, text) }},
	{"max-queued", "maximum number of queued jobs",
		func(q *spec.Quota, text string) error { return count(&q.MaxQueued, text) }},
	{"submit-rps", "maximum submits of jobs and pipelines per second",
		func(q *spec.Quota, text string) error { return rate(&q.SubmitRPS, text) }},
	{"max-priority", "maximum priority of submitted jobs: low, normal, high, or 0 to 1000",
		func(q *spec.Quota, text string) error { return parseAmount(&q.MaxPriority, text) }},
	{"storage-uploads", "maximum size of stored uploads, such as 100GiB", storageFlag(storedUploads)},
	{"storage-logs", "maximum size of stored logs", storageFlag(storedLogs)},
	{"storage-outputs", "maximum size of stored outputs", storageFlag(storedOutputs)},
	{"storage-checkpoints", "maximum size of stored checkpoints", storageFlag(storedCheckpoints)},
	{"storage-total", "maximum size of uploads, logs, outputs and checkpoints together", storageFlag(storedTotal)},
	{"secrets", "maximum number of secrets", secretsFlag},
	{"images", "registries and repositories that images may come from: ghcr.io/acme,docker.io/library", images},
	{"image-signatures", "file with rules about the signatures that images must have, in YAML", imageSignatures},
	{"any-user", "whether jobs may run as the image's user or as any other, root included: true or false", anyUser},
	{"budget", "GPU-hours in each period: 5000/720h", budget},
}

// storageFlag returns the setter of one storage limit. Limits have a unit (100GiB) and are
// kept in MiB.
func storageFlag(of func(*spec.StorageLimits) **spec.MiB) func(*spec.Quota, string) error {
	return func(q *spec.Quota, text string) error { return parseAmount(of(storageIn(q)), text) }
}

// storedUploads and the functions below select one limit, by a pointer to the field, so
// that "none" can set the field to nil.
func storedUploads(l *spec.StorageLimits) **spec.MiB     { return &l.Uploads }
func storedLogs(l *spec.StorageLimits) **spec.MiB        { return &l.Logs }
func storedOutputs(l *spec.StorageLimits) **spec.MiB     { return &l.Outputs }
func storedCheckpoints(l *spec.StorageLimits) **spec.MiB { return &l.Checkpoints }
func storedTotal(l *spec.StorageLimits) **spec.MiB       { return &l.Total }

// anyUser sets whether jobs may choose every user.
func anyUser(q *spec.Quota, text string) error {
	if text == lifted {
		q.AnyUser = nil
		return nil
	}
	allowed, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is not a setting; allowed: true, false, or none", text)
	}
	q.AnyUser = &allowed
	return nil
}

// secretsFlag sets the number of secrets, the only storage limit that is a count.
func secretsFlag(q *spec.Quota, text string) error { return count(&storageIn(q).Secrets, text) }

// storageIn returns the storage limits of a quota and creates the struct if the quota has
// none.
func storageIn(q *spec.Quota) *spec.StorageLimits {
	if q.Storage == nil {
		q.Storage = &spec.StorageLimits{}
	}
	return q.Storage
}

// storageLine is one kind of stored data for the sheet: the used amount and, if set, the
// limit.
type storageLine struct{ name, text string }

// storageOf lists stored data by kind. Kinds that are empty and have no limit are left out.
func storageOf(q spec.Quota) []storageLine {
	var used spec.Stored
	var limits spec.StorageLimits
	if q.Stored != nil {
		used = *q.Stored
	}
	if q.Storage != nil {
		limits = *q.Storage
	}
	var lines []storageLine
	for _, k := range []struct {
		name string
		used int64
		most *spec.MiB
	}{
		{"uploads", used.Uploads, limits.Uploads}, {"logs", used.Logs, limits.Logs},
		{"outputs", used.Outputs, limits.Outputs},
		{"checkpoints", used.Checkpoints, limits.Checkpoints}, {"stored", used.Total, limits.Total},
	} {
		text := berth.BytesText(k.used)
		if k.most != nil {
			text += " of " + k.most.String()
		}
		if k.most != nil || k.used > 0 {
			lines = append(lines, storageLine{k.name, text})
		}
	}
	if limits.Secrets != nil || used.Secrets > 0 {
		lines = append(lines, storageLine{"secrets", ofMost(int(used.Secrets), limits.Secrets)})
	}
	return lines
}

// guarantee and limit select a part of a quota for amountFlag, as do cpus, memory and gpus
// within the part.
func guarantee(q *spec.Quota) **spec.Amounts { return &q.Guarantee }
func limit(q *spec.Quota) **spec.Amounts     { return &q.Limit }

func cpus(a *spec.Amounts, text string) error   { return parseAmount(&a.CPUs, text) }
func memory(a *spec.Amounts, text string) error { return parseAmount(&a.Memory, text) }
func gpus(a *spec.Amounts, text string) error   { return parseAmount(&a.GPUs, text) }

// lifted is the text that removes a setting. A removed setting does not bind.
const lifted = "none"

// amountFlag returns the setter of one amount: of selects guarantee or limit, and set
// parses the amount. A missing part is created, since a tenant may have a limit without a
// guarantee.
func amountFlag(of func(*spec.Quota) **spec.Amounts,
	set func(*spec.Amounts, string) error) func(*spec.Quota, string) error {
	return func(q *spec.Quota, text string) error {
		a := of(q)
		if *a == nil {
			*a = &spec.Amounts{}
		}
		return set(*a, text)
	}
}

// parseAmount parses a setting with the JSON parser of its type, so that flags accept the
// same texts as the API. into is set to nil by "none" and stays unchanged on an error.
func parseAmount[T any, P interface {
	*T
	UnmarshalJSON([]byte) error
}](into **T, text string) error {
	if text == lifted {
		*into = nil
		return nil
	}
	var v T
	if err := P(&v).UnmarshalJSON([]byte(strconv.Quote(text))); err != nil {
		return err
	}
	*into = &v
	return nil
}

// count parses a whole number or "none". The server checks the range.
func count(into **int, text string) error {
	if text == lifted {
		*into = nil
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%q is not a whole number; allowed: a number, or none", text)
	}
	*into = &n
	return nil
}

// rate parses a number per second or "none".
func rate(into **float64, text string) error {
	if text == lifted {
		*into = nil
		return nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("%q is not a number; allowed: a number such as 50, or none", text)
	}
	*into = &n
	return nil
}

// images parses a list of registries and repositories, separated by commas, or "none". The server
// checks the entries.
func images(q *spec.Quota, text string) error {
	q.Images = nil
	if text == lifted {
		return nil
	}
	for entry := range strings.SplitSeq(text, ",") {
		q.Images = append(q.Images, strings.TrimSpace(entry))
	}
	return nil
}

// imageSignatures reads the rules in a file, in YAML or JSON, or "none". The server checks the rules.
func imageSignatures(q *spec.Quota, path string) error {
	q.ImageSignatures = nil
	if path == lifted {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&q.ImageSignatures); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(q.ImageSignatures) == 0 {
		return fmt.Errorf("%s has no rules; allowed: a file with a list of rules, or none", path)
	}
	return nil
}

// signatureText describes a rule by its repositories and the ids of its keys.
func signatureText(r spec.SignatureRule) string {
	of := "all images"
	if len(r.Repositories) > 0 {
		of = strings.Join(r.Repositories, ", ")
	}
	var ids []string
	for _, text := range r.Keys {
		if key, err := spec.ParseSignatureKey(text); err == nil {
			ids = append(ids, key.ID)
		}
	}
	return of + ": by " + strings.Join(ids, " or ")
}

// budget parses GPU-HOURS/PERIOD, such as 5000/720h, or "none". Periods follow one another
// from the time at which the budget is set.
func budget(q *spec.Quota, text string) error {
	if text == lifted {
		q.Budget = nil
		return nil
	}
	hours, period, ok := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(hours, 64)
	if !ok || err != nil {
		return fmt.Errorf("%q is not a budget; allowed: GPU-hours/period such as 5000/720h, or none", text)
	}
	d, err := spec.ParseDuration(period)
	if err != nil {
		return err
	}
	q.Budget = &spec.GPUBudget{GPUHours: n, Period: d}
	return nil
}

// newQuotaSet builds "berth quota set": GET, then PUT /v1/quotas/{tenant}. PUT replaces the
// whole quota, so the flags are applied to the present one. The quota carries its version,
// and the server refuses the PUT with a conflict (exit code 4) if another change came in
// between. So no change is lost, and the command may be repeated.
func newQuotaSet(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set TENANT",
		Short: "Change a tenant's quota",
		Long: "Set changes the settings of the given flags and keeps the others; the value none removes a setting.\n" +
			"If the quota was changed by another call meanwhile, nothing is changed and the exit code is 4.",
		Example: "  berth quota set vision --guarantee-gpus 8 --limit-gpus 16 --max-queued 1000\n" +
			"  berth quota set vision --limit-gpus none --budget 5000/720h",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTenant,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			q, err := c.Quota(cmd.Context(), berth.TenantID(args[0]))
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			if err := applyQuotaFlags(cmd.Flags(), &q); err != nil {
				return err
			}
			after, err := c.SetQuota(cmd.Context(), q)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showQuota(a, after)
		},
	}
	for _, f := range quotaFlags {
		cmd.Flags().String(f.name, "", f.usage)
	}
	_ = cmd.RegisterFlagCompletionFunc("borrow",
		cobra.FixedCompletions([]string{"any", "preemptible", "none"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// applyQuotaFlags applies the given flags to q, in the order of quotaFlags. A call without
// any flag is a usage error.
func applyQuotaFlags(flags *pflag.FlagSet, q *spec.Quota) error {
	some := false
	for _, f := range quotaFlags {
		given := flags.Lookup(f.name)
		// Changed, since an empty text is a value too, which the setter must judge.
		if !given.Changed {
			continue
		}
		some = true
		if err := f.set(q, given.Value.String()); err != nil {
			return usagef("--%s: %v", f.name, err)
		}
	}
	if !some {
		return usagef("nothing to change: at least one flag is required")
	}
	return nil
}

// newQuotaDelete builds "berth quota delete" over DELETE /v1/quotas/{tenant}. Without a
// quota the tenant is bound only by the tenants above it.
func newQuotaDelete(a *app) *cobra.Command {
	return deleteOfTenant(a, &cobra.Command{Short: "Delete a tenant's quota"},
		(*client.Client).DeleteQuota, "deleted the quota of tenant %s\n")
}
