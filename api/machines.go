package api

import (
	"context"
	"net/http"

	"berth"
	"berth/db"
	"berth/wire"
)

func (s *Server) registerMachines() {
	const tag = "machines"
	register(s, s.operation("list-machines", http.MethodGet, "/v1/machines", tag, "List machines with what they have, what is free and by whom it is used"), s.listMachines)
	register(s, s.operation("show-machine", http.MethodGet, "/v1/machines/{id}", tag, "Show a machine"), s.showMachine)
	registerWithBody[wire.DrainRequest](s, s.operation("drain-machine", http.MethodPost, "/v1/machines/{id}/drain", tag, "Keep new work off a machine"), s.drainMachine)
	register(s, s.operation("undrain-machine", http.MethodPost, "/v1/machines/{id}/undrain", tag, "Open a draining machine again"), s.undrainMachine)
	register(s, s.operation("confirm-dead-machine", http.MethodPost, "/v1/machines/{id}/confirm-dead", tag, "Give your word that no container of a silent machine lives any more: what it holds is released"), s.confirmDead)
	retire := s.operation("retire-machine", http.MethodDelete, "/v1/machines/{id}", tag, "Take a machine out for good")
	retire.DefaultStatus = http.StatusNoContent
	register(s, retire, s.retireMachine)
}

// MachineInput is the path of a call about one machine.
type MachineInput struct {
	ID string `path:"id" doc:"the machine's name"`
}

type machineOutput struct{ Body wire.Machine }

type machineListInput struct {
	State []string `query:"state,explode"`
	Paging
}

type machineListOutput struct{ Body wire.Page[wire.Machine] }

func (s *Server) listMachines(ctx context.Context, in *machineListInput) (*machineListOutput, error) {
	f := db.MachineFilter{Tenant: scope(ctx), Limit: in.Limit}
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
	limit := f.Limit
	f.Limit++
	machines, err := s.DB.Machines.List(ctx, f)
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

// machineID parses the path. A text that is not a valid name matches no machine.
func machineID(in string) (berth.MachineID, error) {
	id, err := berth.ParseMachineID(in)
	if err != nil {
		return "", berth.Errorf(berth.CodeNotFound, "no such machine %.80s", in)
	}
	return id, nil
}

func (s *Server) showMachine(ctx context.Context, in *MachineInput) (*machineOutput, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	m, err := s.DB.Machines.Get(ctx, scope(ctx), id)
	if err != nil {
		return nil, err
	}
	return &machineOutput{m}, nil
}

type drainInput struct {
	MachineInput
	Request
}

func (s *Server) drainMachine(ctx context.Context, in *drainInput) (*machineOutput, error) {
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
	if err := s.DB.Machines.Drain(ctx, id, request.Reason, request.Deadline); err != nil {
		return nil, err
	}
	s.Logger.Info("machine drains", "machine_id", id, "reason", request.Reason, "by", operator(ctx))
	return s.showMachine(ctx, &in.MachineInput)
}

func (s *Server) undrainMachine(ctx context.Context, in *MachineInput) (*machineOutput, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := s.DB.Machines.Undrain(ctx, id); err != nil {
		return nil, err
	}
	s.Logger.Info("machine takes work again", "machine_id", id, "by", operator(ctx))
	return s.showMachine(ctx, in)
}

type confirmDeadOutput struct{ Body wire.ConfirmedDead }

func (s *Server) confirmDead(ctx context.Context, in *MachineInput) (*confirmDeadOutput, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	jobs, err := s.DB.Machines.ConfirmDead(ctx, id, operator(ctx))
	if err != nil {
		return nil, err
	}
	if s.Poker != nil {
		s.Poker.Poke(jobs...)
	}
	s.Logger.Warn("machine confirmed dead", "machine_id", id, "jobs", len(jobs), "by", operator(ctx))
	m, err := s.showMachine(ctx, in)
	if err != nil {
		return nil, err
	}
	if jobs == nil {
		jobs = []berth.JobID{}
	}
	return &confirmDeadOutput{wire.ConfirmedDead{Machine: m.Body, Jobs: jobs}}, nil
}

func (s *Server) retireMachine(ctx context.Context, in *MachineInput) (*struct{}, error) {
	id, err := machineID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := s.DB.Machines.Retire(ctx, id, operator(ctx)); err != nil {
		return nil, err
	}
	s.auth.forget()
	s.Logger.Info("machine retired", "machine_id", id, "by", operator(ctx))
	return nil, nil
}
