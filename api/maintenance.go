package api

import (
	"context"
	"log/slog"
	"net/http"

	"berth/db"
	"berth/internal/control/explain"
	"berth/spec"
	"berth/wire"
)

// maintenanceHandlers serve the calls about maintenance windows. All users may read windows, as they
// may read machines; changes are for admins. After a change the explainer of this process reads the
// windows again; other replicas notice the change with a delay.
type maintenanceHandlers struct {
	windows   *db.Maintenance
	explainer *explain.Explainer
	log       *slog.Logger
}

func (h *maintenanceHandlers) mount(r *router) {
	const tag = "machines"
	register(r, r.operation("list-maintenance", http.MethodGet, "/v1/maintenance", tag,
		"List maintenance windows, the latest first"), h.listWindows)
	register(r, r.operation("show-maintenance", http.MethodGet, "/v1/maintenance/{window}", tag,
		"Show a maintenance window with its machines"), h.showWindow)
	create := r.operation("create-maintenance", http.MethodPost, "/v1/maintenance", tag,
		"Plan a maintenance window of machines")
	create.Description = "The machines are drained `grace` before `from`, and healthy ones return to service " +
		"at the end. Jobs that would still run when the machines close do not start on them. " +
		"409 if a machine has another window at the time."
	create.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewMaintenance](r, create, h.createWindow)
	change := r.operation("change-maintenance", http.MethodPatch, "/v1/maintenance/{window}", tag,
		"Move or change a maintenance window")
	change.Description = "Once the machines have closed, only `for`, `reason` and `undrain` can change. " +
		"409 if `version` is not the present one, so that no change is lost."
	registerWithBody[spec.MaintenanceChange](r, change, h.changeWindow)
	register(r, r.operation("cancel-maintenance", http.MethodDelete, "/v1/maintenance/{window}", tag,
		"Cancel a maintenance window before its machines close"), h.cancelWindow)
	register(r, r.operation("end-maintenance", http.MethodPost, "/v1/maintenance/{window}/end", tag,
		"End a maintenance window early"), h.endWindow)
}

// MaintenanceInput is the path of a call about one maintenance window.
type MaintenanceInput struct {
	Window int64 `path:"window" minimum:"1" doc:"number of the window"`
}

type maintenanceListInput struct {
	Paging
	All bool `query:"all" doc:"also windows that have ended or were canceled"`
}

type (
	maintenanceOutput     struct{ Body wire.Maintenance }
	maintenanceListOutput struct{ Body wire.Page[wire.Maintenance] }
)

// listWindows lists windows, the latest first.
func (h *maintenanceHandlers) listWindows(ctx context.Context, in *maintenanceListInput) (
	*maintenanceListOutput, error) {
	list, next, err := h.windows.List(ctx, in.All, in.long())
	if err != nil {
		return nil, err
	}
	return &maintenanceListOutput{page(list, next)}, nil
}

// showWindow returns one window.
func (h *maintenanceHandlers) showWindow(ctx context.Context, in *MaintenanceInput) (*maintenanceOutput, error) {
	x, err := h.windows.Get(ctx, in.Window)
	if err != nil {
		return nil, err
	}
	return &maintenanceOutput{x}, nil
}

// createWindow plans a window.
func (h *maintenanceHandlers) createWindow(ctx context.Context, in *Request) (*maintenanceOutput, error) {
	m, err := readValid[spec.NewMaintenance](*in, nil)
	if err != nil {
		return nil, err
	}
	id, err := h.windows.Create(ctx, m, operator(ctx))
	if err != nil {
		return nil, err
	}
	return h.changed(ctx, id, "planned")
}

type maintenanceChangeInput struct {
	MaintenanceInput
	Request
}

// changeWindow moves or changes a window.
func (h *maintenanceHandlers) changeWindow(ctx context.Context, in *maintenanceChangeInput) (
	*maintenanceOutput, error) {
	m, err := readValid[spec.MaintenanceChange](in.Request, nil)
	if err != nil {
		return nil, err
	}
	if err := h.windows.Change(ctx, in.Window, m); err != nil {
		return nil, err
	}
	return h.changed(ctx, in.Window, "changed")
}

// cancelWindow cancels a window that has not begun.
func (h *maintenanceHandlers) cancelWindow(ctx context.Context, in *MaintenanceInput) (*maintenanceOutput, error) {
	if err := h.windows.Cancel(ctx, in.Window); err != nil {
		return nil, err
	}
	return h.changed(ctx, in.Window, "canceled")
}

// endWindow ends a window that has begun.
func (h *maintenanceHandlers) endWindow(ctx context.Context, in *MaintenanceInput) (*maintenanceOutput, error) {
	if err := h.windows.End(ctx, in.Window); err != nil {
		return nil, err
	}
	return h.changed(ctx, in.Window, "ended")
}

// changed logs a change and returns the window as it is now.
func (h *maintenanceHandlers) changed(ctx context.Context, id int64, what string) (*maintenanceOutput, error) {
	h.explainer.Forget()
	h.log.Info("maintenance window changed", "window", id, "change", what, "by", operator(ctx))
	return h.showWindow(ctx, &MaintenanceInput{id})
}
