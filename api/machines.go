package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// machineHandlers serve the calls of users and operators about machines.
type machineHandlers struct {
	machines *db.Machines
	auth     *authenticator
	poker    Poker
	log      *slog.Logger
}

func (h *machineHandlers) mount(r *router) {
	const tag = "machines"
	register(r, r.operation("list-machines", http.MethodGet, "/v1/machines", tag,
		"List machines with their capacity, the free part, and the jobs that use the rest"), h.listMachines)
	register(r, r.operation("list-machine-events", http.MethodGet, "/v1/machines/{id}/events", tag,
		"List a machine's events, oldest first, with actor and reason"), h.machineEvents)
	register(r, r.operation("show-machine", http.MethodGet, "/v1/machines/{id}", tag, "Show a machine"), h.showMachine)
	approve := r.operation("approve-machine", http.MethodPost, "/v1/machines/{id}/approve", tag,
		"Approve the equipment that a machine reported last, so that it gets work")
	approve.Description = "409 if `fingerprint` is not the present one, " +
		"since the machine has reported other equipment."
	registerWithBody[wire.ApproveRequest](r, approve, h.approveMachine)
	registerWithBody[wire.DrainRequest](r, r.operation("drain-machine", http.MethodPost, "/v1/machines/{id}/drain", tag,
		"Drain a machine: give it no new work"), h.drainMachine)
	register(r, r.operation("undrain-machine", http.MethodPost, "/v1/machines/{id}/undrain", tag,
		"End the drain of a machine"), h.undrainMachine)
	taint := r.operation("taint-machine", http.MethodPost, "/v1/machines/{id}/taints", tag,
		"Change the taints of a machine: jobs start there only if they tolerate each taint")
	taint.Description = "Jobs that run on the machine continue. Taints of the machine's pool are changed with the pool."
	registerWithBody[spec.TaintChange](r, taint, h.taintMachine)
	waive := r.operation("waive-machine-floor", http.MethodPost, "/v1/machines/{id}/waivers", tag,
		"State that the reported version of a machine's component is secure, until a date")
	waive.Description = "The waiver covers the findings about the component at this time. It ends by itself at " +
		"`until`, and as soon as the machine reports another version of the component. The leader renews its verdict " +
		"within seconds."
	registerWithBody[spec.NewWaiver](r, waive, h.waiveFloor)
	register(r, r.operation("unwaive-machine-floor", http.MethodDelete, "/v1/machines/{id}/waivers/{component}", tag,
		"End a waiver of a machine's security floor before its date"), h.unwaiveFloor)
	register(r, r.operation("confirm-dead-machine", http.MethodPost, "/v1/machines/{id}/confirm-dead", tag,
		"Confirm that an unreachable machine's containers have stopped: their capacity is released"), h.confirmDead)
	retire := r.operation("retire-machine", http.MethodDelete, "/v1/machines/{id}", tag,
		"Retire a machine: remove it permanently")
	retire.DefaultStatus = http.StatusNoContent
	register(r, retire, h.retireMachine)
}

// MachineInput is the path of a call about one machine.
type MachineInput struct {
	ID string `path:"id" doc:"the machine's name"`
}

type machineOutput struct{ Body wire.Machine }

// machineListInput selects machines; several values of State are alternatives.
type machineListInput struct {
	State []string `query:"state,explode" doc:"drained machines are not among the draining ones"`
	Pool  string   `query:"pool" maxLength:"63"`
	Label []string `query:"label,explode" doc:"key=value; all of these; may be given more than once"`
	Paging
}

type machineListOutput struct{ Body wire.Page[wire.Machine] }

// listMachines returns a page of machines by id. Without a limit the page is as long as
// allowed: clients of an earlier version read the list whole. Users see only their own
// jobs on a machine.
func (h *machineHandlers) listMachines(ctx context.Context, in *machineListInput) (*machineListOutput, error) {
	f := db.MachineFilter{Tenant: scope(ctx), Limit: in.Limit, Pool: in.Pool, Labels: map[string]string{}}
	for _, l := range in.Label {
		key, value, ok := strings.Cut(l, "=")
		if !ok {
			return nil, invalid("", []berth.FieldError{{Field: "label", Detail: fmt.Sprintf("%.80q is not a label", l),
				Allowed: "key=value"}}, nil)
		}
		f.Labels[key] = value
	}
	for field, text := range map[string]string{"label": strings.Join(in.Label, ""), "pool": in.Pool,
		"state": strings.Join(in.State, "")} {
		if strings.ContainsRune(text, 0) {
			return nil, invalid("", []berth.FieldError{{Field: field, Detail: "has a NUL",
				Allowed: "text without NUL"}}, nil)
		}
	}
	if f.Limit == 0 {
		f.Limit = db.MaxPage
	}
	for _, state := range in.State {
		f.State = append(f.State, berth.MachineState(state))
	}
	if in.Cursor != "" {
		after, err := berth.ParseMachineID(in.Cursor)
		if err != nil {
			return nil, berth.Errorf(berth.CodeInvalid, "cursor %.40q is not one that this list gave", in.Cursor)
		}
		f.After = after
	}
	// One machine more than the page reveals whether a next page exists.
	limit := f.Limit
	f.Limit++
	machines, err := h.machines.List(ctx, f)
	if err != nil {
		return nil, err
	}
	next := ""
	if len(machines) > limit {
		machines = machines[:limit]
		next = string(machines[limit-1].ID)
	}
	return &machineListOutput{page(machines, next)}, nil
}

// machineID parses the path. A text that is not a valid name matches no machine, so the
// answer is 404 and not 400.
func machineID(in string) (berth.MachineID, error) {
	id, err := berth.ParseMachineID(in)
	if err != nil {
		return "", berth.Errorf(berth.CodeNotFound, "no such machine %.80s", in)
	}
	return id, nil
}

// showMachine returns a machine with its devices and its jobs, as far as the caller may
// see these jobs.
func (h *machineHandlers) showMachine(ctx context.Context, in *MachineInput) (*machineOutput, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	m, err := h.machines.Get(ctx, scope(ctx), id)
	if err != nil {
		return nil, err
	}
	if m.Images, err = h.machines.Images(ctx, scope(ctx), id); err != nil {
		return nil, err
	}
	return &machineOutput{m}, nil
}

// machineEventsInput selects a part of a machine's history.
type machineEventsInput struct {
	MachineInput
	Paging
}

type machineEventsOutput struct{ Body wire.Page[wire.MachineEvent] }

// machineEvents returns a page of a machine's history. The cursor is the seq of the last event
// seen, so that a client that follows the history asks with the last one again.
func (h *machineHandlers) machineEvents(ctx context.Context, in *machineEventsInput) (*machineEventsOutput, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	after, err := strconv.ParseInt(in.Cursor, 10, 64)
	if in.Cursor != "" && (err != nil || after < 0) {
		return nil, berth.Errorf(berth.CodeInvalid, "cursor %.40q is not the seq of an event of this list", in.Cursor)
	}
	limit := in.Limit
	if limit == 0 {
		limit = eventPage
	}
	list, err := h.machines.Events(ctx, id, after, limit+1)
	if err != nil {
		return nil, err
	}
	next := ""
	if len(list) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].Seq, 10)
	}
	return &machineEventsOutput{page(list, next)}, nil
}

// machineChange is a call that changes one machine, with a body.
type machineChange struct {
	MachineInput
	Request
}

// drainMachine keeps new work off a machine. Without a reason in the request, the reason
// names the caller.
func (h *machineHandlers) drainMachine(ctx context.Context, in *machineChange) (*machineOutput, error) {
	var request wire.DrainRequest
	faults, err := decode(in.ContentType, in.RawBody, &request)
	if err != nil {
		return nil, err
	}
	if len(request.Reason) > 500 {
		faults = append(faults, berth.FieldError{Field: "reason", Detail: "is too long", Allowed: "at most 500 bytes"})
	}
	if err := invalid(berth.SlugInvalidSpec, faults, nil); err != nil {
		return nil, err
	}
	if request.Reason == "" {
		request.Reason = "drained by " + caller(ctx).Name
	}
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := h.machines.Drain(ctx, id, request.Reason, request.Deadline, operator(ctx)); err != nil {
		return nil, err
	}
	h.log.Info("machine draining", "machine_id", id, "reason", request.Reason, "by", operator(ctx))
	return h.showMachine(ctx, &in.MachineInput)
}

// undrainMachine opens a draining machine for work again.
func (h *machineHandlers) undrainMachine(ctx context.Context, in *MachineInput) (*machineOutput, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := h.machines.Undrain(ctx, id, operator(ctx)); err != nil {
		return nil, err
	}
	h.log.Info("machine undrained", "machine_id", id, "by", operator(ctx))
	return h.showMachine(ctx, in)
}

// taintMachine changes the taints of a machine.
func (h *machineHandlers) taintMachine(ctx context.Context, in *machineChange) (*machineOutput, error) {
	change, err := readValid[spec.TaintChange](in.Request, nil)
	if err != nil {
		return nil, err
	}
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := h.machines.SetTaints(ctx, id, change); err != nil {
		return nil, err
	}
	h.log.Info("taints of machine changed", "machine_id", id, "added", change.Add, "removed", change.Remove,
		"by", operator(ctx))
	return h.showMachine(ctx, &in.MachineInput)
}

// waiveFloor records a waiver of a machine's security floor.
func (h *machineHandlers) waiveFloor(ctx context.Context, in *machineChange) (*machineOutput, error) {
	var w spec.NewWaiver
	faults, err := decode(in.ContentType, in.RawBody, &w)
	if err != nil {
		return nil, err
	}
	if err := invalid(berth.SlugInvalidSpec, faults, w.Validate(time.Now())); err != nil {
		return nil, err
	}
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if w.Version == "" {
		h.log.Warn("waiver without a version covers the reported one, a later version of berthd will refuse it",
			"machine_id", id, "component", w.Component, "by", operator(ctx))
	}
	if err := h.machines.Waive(ctx, id, w, operator(ctx)); err != nil {
		return nil, err
	}
	h.log.Info("security floor of machine waived", "machine_id", id, "component", w.Component, "until", w.Until,
		"reason", w.Reason, "by", operator(ctx))
	return h.showMachine(ctx, &in.MachineInput)
}

// WaiverInput is the path of a call about one waiver of a machine.
type WaiverInput struct {
	MachineInput
	Component string `path:"component" maxLength:"128"`
}

// unwaiveFloor ends a waiver of a machine's security floor.
func (h *machineHandlers) unwaiveFloor(ctx context.Context, in *WaiverInput) (*machineOutput, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := h.machines.Unwaive(ctx, id, in.Component, operator(ctx)); err != nil {
		return nil, err
	}
	h.log.Info("waiver of machine ended", "machine_id", id, "component", in.Component, "by", operator(ctx))
	return h.showMachine(ctx, &in.MachineInput)
}

// approveMachine approves a pending machine, so that it gets work.
func (h *machineHandlers) approveMachine(ctx context.Context, in *machineChange) (*machineOutput, error) {
	var request wire.ApproveRequest
	faults, err := decode(in.ContentType, in.RawBody, &request)
	if err != nil {
		return nil, err
	}
	if err := invalid(berth.SlugInvalidSpec, faults, nil); err != nil {
		return nil, err
	}
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := h.machines.Approve(ctx, id, request.Fingerprint, operator(ctx)); err != nil {
		return nil, err
	}
	h.log.Info("machine approved", "machine_id", id, "by", operator(ctx))
	return h.showMachine(ctx, &in.MachineInput)
}

type confirmDeadOutput struct{ Body wire.ConfirmedDead }

// confirmDead releases the capacity of a silent machine on the operator's word. The
// affected jobs are poked, so that their workflows settle them at once.
func (h *machineHandlers) confirmDead(ctx context.Context, in *MachineInput) (*confirmDeadOutput, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	jobs, err := h.machines.ConfirmDead(ctx, id, operator(ctx))
	if err != nil {
		return nil, err
	}
	if h.poker != nil {
		h.poker.Poke(jobs...)
	}
	h.log.Warn("machine confirmed dead", "machine_id", id, "jobs", len(jobs), "by", operator(ctx))
	m, err := h.showMachine(ctx, in)
	if err != nil {
		return nil, err
	}
	if jobs == nil {
		jobs = []berth.JobID{}
	}
	return &confirmDeadOutput{wire.ConfirmedDead{Machine: m.Body, Jobs: jobs}}, nil
}

// retireMachine removes a machine for good and revokes its token. Cached verdicts on
// tokens are dropped, so that this process refuses the token from the next call on.
func (h *machineHandlers) retireMachine(ctx context.Context, in *MachineInput) (*struct{}, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := h.machines.Retire(ctx, id, operator(ctx)); err != nil {
		return nil, err
	}
	h.auth.forget()
	h.log.Info("machine retired", "machine_id", id, "by", operator(ctx))
	return nil, nil
}
