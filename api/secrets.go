package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/lib/sealer"
	"berth/spec"
	"berth/wire"
)

// slugNoKeys is the answer of a server without a key for secrets: such a server can
// neither store secrets nor run jobs that name secrets.
const slugNoKeys = "no_secret_keys"

// secretHandlers serve the calls about secrets, and give machines the secret values that
// their work names.
type secretHandlers struct {
	secrets   *db.Secrets
	vault     *sealer.Keys // nil: this server stores no secrets
	as        string       // how containers receive secrets if the job file has no secrets_as
	admission *admission.Controller
	rules     secretRules
	log       *slog.Logger
}

func (h *secretHandlers) mount(r *router) {
	const tag = "data"
	set := r.operation("set-secret", http.MethodPost, "/v1/secrets", tag,
		"Store a secret of your tenant, or another value of it")
	set.Description = "201 if it is new, 200 if it has another value now. The value is sealed before it is stored, " +
		"and no call returns it; machines that run jobs which name it get it when they claim them. " +
		"409 `quota`: the tenant, or one above it, may have no more secrets."
	set.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewSecretValue](r, set, h.setSecret)
	register(r, r.operation("list-secrets", http.MethodGet, "/v1/secrets", tag,
		"List the names of your tenant's secrets"), h.listSecrets)
	remove := r.operation("delete-secret", http.MethodDelete, "/v1/secrets/{name}", tag,
		"Delete a secret; jobs that name it and have not begun will fail")
	remove.DefaultStatus = http.StatusNoContent
	register(r, remove, h.deleteSecret)
}

type secretOutput struct {
	Status int
	Body   wire.Secret
}

// setSecret seals and stores a secret, or another value of an existing one. No error and
// no log line may contain the value or a part of the value.
func (h *secretHandlers) setSecret(ctx context.Context, in *Request) (*secretOutput, error) {
	if err := h.rules.keepsSecrets(); err != nil {
		return nil, err
	}
	var n spec.NewSecretValue
	faults, err := decode(in.ContentType, in.RawBody, &n)
	if err != nil {
		return nil, berth.Errorf(berth.CodeInvalid,
			"the body is not JSON, or was not sent as such") // a JSON error may quote the value
	}
	for i, f := range faults {
		if f.Field == "value" {
			faults[i].Detail = "is no text" // the detail of a fault may quote the value
		}
	}
	if err := invalid(berth.SlugInvalidSpec, faults, n.Validate()); err != nil {
		return nil, err
	}
	if err := h.rules.mayChange(ctx, n.Name); err != nil {
		return nil, err
	}
	tenant := caller(ctx).Tenant
	key, sealed := h.vault.Seal(tenant, n.Name, []byte(n.Value))
	limits, err := h.admission.StorageLimits(ctx, tenant)
	if err != nil {
		return nil, err
	}
	secret := db.SealedSecret{Tenant: tenant, Name: n.Name, Key: key, Sealed: sealed}
	made, created, err := h.secrets.Set(ctx, secret, limits...)
	if err != nil {
		return nil, err
	}
	h.log.Info("secret set", "tenant", tenant, "name", n.Name, "by", actor(ctx))
	return &secretOutput{createdStatus(created), made}, nil
}

// secretRules refuse submits that need secrets which this server cannot store.
type secretRules struct {
	vault         *sealer.Keys // nil: this server stores no secrets
	plainWebhooks bool
	channels      *db.Channels
}

// mayNotify refuses webhooks that could never be called: without TLS where the operator
// has not allowed that, or without a key for the secret that signs the calls. It also refuses
// channels that the tenant does not have.
func (r *secretRules) mayNotify(ctx context.Context, tenant berth.TenantID, list []spec.Notify) error {
	if len(list) == 0 {
		return nil
	}
	if !r.plainWebhooks {
		if err := invalid(berth.SlugInvalidSpec, nil, spec.PlainWebhooks(list)); err != nil {
			return err
		}
	}
	if err := r.channels.CheckNames(ctx, tenant, list); err != nil {
		return err
	}
	return r.keepsSecrets()
}

// mayChange refuses the change of a secret that is the address of a channel with events of machines: only admins see
// these events.
func (r *secretRules) mayChange(ctx context.Context, name string) error {
	if scope(ctx) == "" {
		return nil
	}
	guarded, err := r.channels.GuardSecret(ctx, caller(ctx).Tenant, name)
	if err == nil && guarded {
		err = berth.Errorf(berth.CodeForbidden, "secret %s is the address of a channel with events of machines, so "+
			"only an admin can change it", name)
	}
	return err
}

// keepsSecrets returns an error if this server has no key for secrets.
func (r *secretRules) keepsSecrets() error {
	if r.vault != nil {
		return nil
	}
	return &berth.Error{Code: berth.CodeConflict, Slug: slugNoKeys,
		Message: "this server keeps no secrets: start berthd with --secret-key-file"}
}

type secretListOutput struct{ Body wire.Page[wire.Secret] }

// listSecrets lists the names of the tenant's secrets, never their values.
func (h *secretHandlers) listSecrets(ctx context.Context, in *Paging) (*secretListOutput, error) {
	list, next, err := h.secrets.List(ctx, caller(ctx).Tenant, in.long())
	if err != nil {
		return nil, err
	}
	return &secretListOutput{page(list, next)}, nil
}

type secretInput struct {
	Name string `path:"name" maxLength:"128"`
}

// deleteSecret deletes a secret. Jobs that name the secret and have not started will
// fail.
func (h *secretHandlers) deleteSecret(ctx context.Context, in *secretInput) (*struct{}, error) {
	if err := h.rules.mayChange(ctx, in.Name); err != nil {
		return nil, err
	}
	tenant := caller(ctx).Tenant
	if err := h.secrets.Delete(ctx, tenant, in.Name); err != nil {
		return nil, err
	}
	h.log.Info("secret deleted", "tenant", tenant, "name", in.Name, "by", actor(ctx))
	return nil, nil
}

// begun reports whether the container of a claim's member has already started.
func begun(c *wire.Claim) bool {
	return c.Phase == berth.PhaseRunning || c.Phase == berth.PhaseExited || c.Phase == berth.PhaseSealed
}

// handOut adds to a claim the values of the secrets that its job names. The caller has
// just verified that the machine holds this work, at the job's current attempt and in its
// own current session; no other caller receives the values. After the start of the
// container the claim contains none. The claim says how the container receives the values, also if
// the job does not. If one value is missing, the claim gets none of them
// and names the reason, and the agent starts no container. The same holds for an image that the
// tenant may not run at present: the rules may have changed since the submit.
func (h *secretHandlers) handOut(ctx context.Context, c *wire.Claim) error {
	if begun(c) {
		return nil
	}
	switch err := h.admission.AllowImage(ctx, c.Tenant, c.Spec.Image); {
	case berth.IsSlug(err, berth.SlugInvalidSpec):
		c.Withheld = &wire.Withheld{Missing: true, Image: true, Message: err.Error()}
		return nil
	case err != nil:
		return err
	}
	names := c.Spec.AllSecrets()
	if len(names) == 0 {
		return nil
	}
	if c.Spec.SecretsAs == "" {
		c.Spec.SecretsAs = h.as
	}
	if h.vault == nil {
		c.Withheld = &wire.Withheld{Message: "this server has no key for secrets: berthd needs --secret-key-file"}
		return nil
	}
	found, err := h.secrets.Sealed(ctx, c.Tenant, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		i := slices.IndexFunc(found, func(f db.SealedSecret) bool { return f.Name == name })
		if i < 0 {
			c.Secrets, c.InputLogins, c.ImageLogin = nil, nil, nil
			c.Withheld = &wire.Withheld{Missing: true,
				Message: fmt.Sprintf("secret %s was deleted since the job was submitted", name)}
			return nil
		}
		value, err := h.vault.Open(c.Tenant, name, found[i].Key, found[i].Sealed)
		if err != nil {
			h.log.Error("secret cannot be opened", "tenant", c.Tenant, "name", name, "err", err)
			c.Secrets, c.InputLogins, c.ImageLogin = nil, nil, nil
			c.Withheld = &wire.Withheld{Message: err.Error()}
			return nil
		}
		if slices.Contains(c.Spec.Secrets, name) {
			c.Secrets = append(c.Secrets, spec.SecretValue{Name: name, Value: spec.Sensitive(value)})
		}
		if slices.ContainsFunc(c.Spec.Inputs, func(in spec.Input) bool { return in.Secret == name }) {
			c.InputLogins = append(c.InputLogins, spec.SecretValue{Name: name, Value: spec.Sensitive(value)})
		}
		if name == c.Spec.ImageAuth {
			user, password, ok := strings.Cut(strings.TrimSpace(string(value)), ":")
			if !ok || user == "" {
				c.Secrets, c.InputLogins, c.ImageLogin = nil, nil, nil
				c.Withheld = &wire.Withheld{Missing: true,
					Message: fmt.Sprintf("image_auth: secret %s is not written USER:PASSWORD", name)}
				return nil
			}
			c.ImageLogin = &wire.Login{Username: spec.Sensitive(user), Password: spec.Sensitive(password)}
		}
	}
	return nil
}

// demandSignatures adds to a claim the signatures that the image must have. The rules at the time of
// the claim count; they do not affect a container that has started. An agent that does not verify
// signatures gets neither the work nor its secrets, and the job moves to another machine.
func (h *secretHandlers) demandSignatures(call echo.Context, c *wire.Claim) error {
	if begun(c) || c.Withheld != nil {
		return nil
	}
	demands, err := h.admission.Signatures(call.Request().Context(), c.Tenant, c.Spec.Image)
	if err != nil || len(demands) == 0 {
		return err
	}
	if call.Request().Header.Get(wire.HeaderSignatures) == "" {
		c.Secrets, c.InputLogins, c.ImageLogin = nil, nil, nil
		c.Withheld = &wire.Withheld{Message: fmt.Sprintf("%s demands a signature of image %s, which the agent of this "+
			"machine does not verify; upgrade the agent", demands[0].Whose, c.Spec.Image)}
		return nil
	}
	c.Signatures = demands
	return nil
}
