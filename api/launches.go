package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/wire"
)

// launchHandlers serve the calls of admins about machines of clouds.
type launchHandlers struct {
	launches *db.Launches
	accounts cloud.Accounts
	sealed   bool // this server has a file of secret keys
	log      *slog.Logger
}

func (h *launchHandlers) mount(r *router) {
	const tag = "machines"
	register(r, r.operation("list-launches", http.MethodGet, "/v1/launches", tag,
		"List requests for machines of clouds, by machine"), h.list)
	launch := r.operation("launch-machines", http.MethodPost, "/v1/launches", tag, "Launch machines in a cloud")
	launch.Description = "A repeated call with the same key returns the launches of the first one. The machines join " +
		"by themselves; a launch whose outcome is unknown stays in the list until it is resolved."
	registerWithBody[wire.LaunchRequest](r, launch, h.launch)
	end := r.operation("terminate-machine", http.MethodPost, "/v1/launches/{machine}/terminate", tag,
		"Drain a machine of a cloud and terminate its instance")
	end.Description = "Work on the machine runs to its end, or until the deadline. The launch is `gone` once the " +
		"cloud has shown the instance as terminated twice, a minute apart."
	registerWithBody[wire.TerminateRequest](r, end, h.terminate)
}

// launchListInput selects launches.
type launchListInput struct {
	Machine string `query:"machine" maxLength:"63" doc:"only launches of this machine"`
	All     bool   `query:"all" doc:"also launches that are gone or failed"`
	Paging
}

type (
	launchListOutput struct{ Body wire.Page[wire.Launch] }
	launchOutput     struct{ Body wire.Launch }
	launchInput      struct{ Request }
	terminateInput   struct {
		Machine string `path:"machine" doc:"the machine's name"`
		Request
	}
)

// list returns a page of launches. Without all it leaves out launches that are settled, which have no
// instance.
func (h *launchHandlers) list(ctx context.Context, in *launchListInput) (*launchListOutput, error) {
	f := db.LaunchFilter{Settled: in.All}
	if in.Machine != "" {
		id, err := machineID(in.Machine)
		if err != nil {
			return nil, err
		}
		f.Machine = id
	}
	list, next, err := h.launches.List(ctx, f, in.long())
	if err != nil {
		return nil, err
	}
	return &launchListOutput{page(list, next)}, nil
}

// launch requests machines. Their names derive from pool and key, so a repeat names the same ones. A
// launch needs secret keys: its stored request contains a join token, which the database must not be
// able to use.
func (h *launchHandlers) launch(ctx context.Context, in *launchInput) (*launchListOutput, error) {
	r, err := readValid[wire.LaunchRequest](in.Request, nil)
	if err != nil {
		return nil, err
	}
	r = r.WithDefaults()
	account, err := h.accounts.Account(r.Provider)
	if err != nil {
		return nil, err
	}
	// Berth lists the instances of an account in its regions only, so a stray one elsewhere would
	// not be found.
	if !slices.Contains(account.Regions, r.Region) {
		allowed := "configured for provider " + r.Provider + " are " + strings.Join(account.Regions, ", ")
		return nil, &berth.Error{Code: berth.CodeInvalid, Message: "region " + r.Region + ": " + allowed,
			Fields: []berth.FieldError{{Field: "region", Detail: "names " + r.Region, Allowed: allowed}}}
	}
	if !h.sealed {
		return nil, berth.Errorf(berth.CodeUnavailable,
			"launches need --secret-key-file, and this berthd runs without it")
	}
	machines := make([]berth.MachineID, r.Count)
	for i := range machines {
		if machines[i] = r.Machine; r.Machine == "" {
			sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", r.Pool, r.Key, i))
			machines[i] = berth.MachineID(fmt.Sprintf("%.50s-%s", r.Pool, hex.EncodeToString(sum[:4])))
		}
	}
	request := cloud.Request{Pool: r.Pool, Provider: r.Provider, Price: r.Price, Offering: cloud.Offering{
		Region: r.Region, Zone: r.Zone, Type: r.Type, Market: cloud.Market(r.Market)}}
	// A repeated call must succeed with the launches of the first one, also if the cloud has
	// refused others since. So it comes before the check of breakers.
	made, err := h.launches.Made(ctx, machines, r.Key)
	if err != nil {
		return nil, err
	}
	if !made { // a repeated call launches nothing
		if err := h.open(ctx, request, r.Force); err != nil {
			return nil, err
		}
	}
	list, err := h.request(ctx, request, machines, r.Key)
	if err != nil {
		return nil, err
	}
	return &launchListOutput{page(list, "")}, nil
}

// request creates the launches, or returns the launches of the first call with the key. The rows are
// committed before any call to the cloud, which the workflow of each machine makes (docs/adr/0064).
func (h *launchHandlers) request(ctx context.Context, request cloud.Request, machines []berth.MachineID,
	key string) ([]wire.Launch, error) {
	made, err := h.launches.Request(ctx, request, machines, key, operator(ctx))
	if err != nil {
		return nil, err
	}
	h.log.Info("machines requested", "pool", request.Pool, "provider", request.Provider,
		"offering", request.Offering.String(), "count", len(made), "by", operator(ctx))
	list := make([]wire.Launch, len(made))
	for i, l := range made {
		if list[i], err = h.launches.Get(ctx, l.Ref()); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// open fails with a conflict if the cloud refused such a request a short time ago, or could not be called. An admin may
// force a launch, to try a cloud again before the breaker ends.
func (h *launchHandlers) open(ctx context.Context, r cloud.Request, force bool) error {
	if force {
		return nil
	}
	list, now, err := h.launches.Breakers(ctx, r)
	if err != nil {
		return err
	}
	for _, b := range list {
		if !b.Open(now) {
			continue
		}
		return berth.Errorf(berth.CodeConflict, "such launches are refused %s (closed: %s): %s; wait, choose "+
			"another offering, or launch with force", b.Ends(), b.What(), b.Reason)
	}
	return nil
}

// terminate requests the end of a machine, or records that its instance is absent. An absence is
// confirmed by an admin alone: Berth cannot prove it, and a machine that exists all the same would cost
// money unseen.
func (h *launchHandlers) terminate(ctx context.Context, in *terminateInput) (*launchOutput, error) {
	id, err := machineID(in.Machine)
	if err != nil {
		return nil, err
	}
	r, err := readValid[wire.TerminateRequest](in.Request, nil)
	if err != nil {
		return nil, err
	}
	if r.IfIdle {
		busy, err := h.launches.Busy(ctx, id)
		if err != nil {
			return nil, err
		}
		// This check protects against mistakes only: work may come after it, and then the drain
		// waits for the work.
		if busy > 0 {
			return nil, berth.Errorf(berth.CodeConflict, "machine %s has %d jobs, and if_idle (--now) allows none; "+
				"without it the machine is drained before it is terminated", id, busy)
		}
	}
	// A pure function of the row: Change may call it more than once.
	end := func(l cloud.Record, now time.Time) (cloud.Record, error) {
		if r.ConfirmAbsent {
			return l.Absent(operator(ctx))
		}
		stop := cloud.Stop{Actor: operator(ctx), Reason: r.Reason}
		if stop.Reason == "" {
			stop.Reason = "terminated by " + stop.Actor
		}
		if r.Deadline != nil {
			stop.Deadline = *r.Deadline
		}
		return l.WithStop(stop, now)
	}
	after, err := h.launches.Change(ctx, cloud.Ref{Machine: id}, end)
	if err != nil {
		return nil, err
	}
	h.log.Info("machine termination requested", "machine", id, "launch", after.N, "confirm_absent", r.ConfirmAbsent,
		"by", operator(ctx))
	l, err := h.launches.Get(ctx, after.Ref())
	return &launchOutput{l}, err
}
