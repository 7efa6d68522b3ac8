package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/internal/machine/signature"
	"berth/spec"
	"berth/wire"
)

// recipe is the part of the container's specification that the preparation finds out.
type recipe struct {
	image    string      // reference of the image; with its digest, if it has one
	held     string      // reference by which the engine has the image
	restored *int64      // step of the checkpoint in place; nil: none
	source   berth.JobID // job that saved it, if it is another one
	parts    int         // number of members whose parts are in place; 0: the member's own part
}

// pullPhase makes the image usable: the one that its name meant when the first member of the job
// resolved it, even if the name means another image by now.
type pullPhase struct {
	*core
	control *control
	access  *imageAccess
	signed  *imageSignatures
	pulled  *pulledImages
	stage   *stager
	recipe  *recipe
	spans   spans
	result  *result
}

// Do pulls the image in a span of its own. A claim that the server withheld, since secrets are
// missing or the image is not allowed, ends the member before the pull.
func (p *pullPhase) Do(ctx context.Context) (phase, error) {
	if w := p.claim.Withheld; w != nil {
		switch {
		case w.Image:
			return p.result.notStarted(failure.CauseImageNotAllowed, w.Message)
		case w.User:
			return p.result.notStarted(failure.CauseUserNotAllowed, w.Message)
		case w.Missing:
			return p.result.notStarted(failure.CauseSecretMissing, w.Message)
		default:
			return p.result.notStarted(failure.CauseSecretUnavailable, w.Message)
		}
	}
	return p.spans.step(ctx, "pull", p.result, p.pull)
}

// pull makes the image usable and notes its reference for the container, and its digest for the
// reports.
func (p *pullPhase) pull(ctx context.Context) (phase, error) {
	p.reports.enter(slow, berth.PhasePulling)
	image, digest, err := p.resolve(ctx)
	if err == nil {
		err = p.insist(ctx, image, func() error {
			return p.signed.demand(ctx, image, digest, p.login(), p.claim.Signatures)
		})
	}
	cause := failure.CauseImageUnavailable
	switch {
	case err == nil:
		p.recipe.image, p.recipe.held = pinImage(image, digest), image
		p.reports.edit(later, func(r *wire.RankReport) { r.ImageDigest = digest })
		return phaseWorkdir, nil
	case ctx.Err() != nil:
		return "", err
	case berth.CodeOf(err) == berth.CodeConflict: // the server has moved on, and stops this member
		return p.result.notStarted(failure.CauseNotStarted, err.Error())
	case errors.Is(err, signature.ErrUnsigned):
		cause = failure.CauseImageUnsigned
	case errors.Is(err, node.ErrImageNotFound):
		cause = failure.CauseImageNotFound
	case errors.Is(err, node.ErrImageMismatch):
		p.log.Error("image content does not match its digest", "image", image, "err", err)
		cause = failure.CauseImageMismatch
	}
	return p.result.notStarted(cause, err.Error())
}

// resolve makes the image usable and returns its reference and digest. A digest that the job has fixed is pulled
// itself: its name may have another digest by now, or exist no more. A reference with a digest is not a name that
// moves. If none is fixed and the claim asks for it, resolve fixes the digest that the name has here. It also reports
// that the image here has none, as images do that came from no registry.
func (p *pullPhase) resolve(ctx context.Context) (image, digest string, err error) {
	image = p.claim.Spec.Image
	if p.claim.ImageDigest != "" && !spec.PinnedImage(image) {
		return p.pullFixed(ctx, image, p.claim.ImageDigest)
	}
	digest, err = p.ensure(ctx, image)
	if err != nil || p.claim.ImageDigest != "" || !p.claim.FixImage {
		return image, digest, err
	}
	want, err := p.fix(ctx, digest)
	switch {
	case err != nil:
		return image, "", err
	case want == digest:
		return image, digest, nil
	}
	p.log.Info("image of the job is another one, pulling it", "image", image, "digest", want, "found", digest)
	return p.pullFixed(ctx, image, want)
}

// pullFixed makes the digest of the job usable, and returns the reference with it.
func (p *pullPhase) pullFixed(ctx context.Context, image, want string) (pinned, digest string, err error) {
	pinned = image + "@" + want
	digest, err = p.ensure(ctx, pinned)
	if errors.Is(err, node.ErrImageNotFound) {
		err = p.gone(ctx, image, want, err)
	}
	return pinned, digest, err
}

// gone returns the error for a digest that the registry does not serve: the origin of the digest, the present digest of
// the name, and the next step of the user.
func (p *pullPhase) gone(ctx context.Context, image, want string, err error) error {
	from := "the job began with digest " + want
	switch by, at := p.claim.ImageDigestBy, p.claim.ImageDigestAt; {
	case by == wire.DigestBySubmit && at != nil:
		from = fmt.Sprintf("the tag named digest %s at the submit (%s)", want, at.UTC().Format("2006-01-02 15:04 UTC"))
	case by == wire.DigestByRetry:
		from = fmt.Sprintf("the job that this one retries ran digest %s", want)
	}
	now := "it is not known what the tag names now"
	switch found, asked := p.runtime.ResolveTag(ctx, image, p.login()); {
	case errors.Is(asked, node.ErrImageNotFound):
		now = "the tag names nothing now that this job may pull"
	case asked == nil && found == want:
		now = "the tag still names it"
	case asked == nil:
		now = "the tag names " + found + " now"
	}
	return fmt.Errorf("image %s: %s, which the registry does not serve, and %s: submit the job again, or run berth "+
		"retry with --fresh-image or --set image=IMAGE, to run another image: %w", image, from, now, err)
}

// fix reports the digest that the image has on this machine and returns the one that the job has
// fixed, perhaps by the report of another member. It waits for an absent server. A server without
// the call is of the version before: after some tries, which may reach a newer replica, the member
// runs what it has found, as that version has it.
func (p *pullPhase) fix(ctx context.Context, digest string) (string, error) {
	wait := p.timing.backoff()
	for try := 1; ; try++ {
		fixed, err := p.control.fixImage(ctx, wire.ImageReport{
			Alloc: p.alloc, Job: p.job, Attempt: p.attempt, Digest: digest,
		})
		switch {
		case err == nil:
			return fixed.Digest, nil
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case berth.CodeOf(err) == berth.CodeNotFound && try >= pullTries:
			p.log.Warn("server fixes no digests of images, using the one found here", "digest", digest, "err", err)
			return digest, nil
		case digest == "" && berth.CodeOf(err) == berth.CodeInvalid: // a server of a version before looks for no digest
			return "", nil
		case refused(err) && berth.CodeOf(err) != berth.CodeNotFound:
			return "", err
		}
		p.log.Warn("image digest not fixed, will retry", "digest", digest, "try", try, "err", err)
		if err := wait.wait(ctx); err != nil {
			return "", err
		}
	}
}

// pullTries is how often this machine asks for an image that is unavailable, before
// another machine does.
const pullTries = 5

// pinImage adds the digest to a reference that has none. The container is created by the digest that
// was checked, even if another pull has moved the name on this machine meanwhile.
func pinImage(image, digest string) string {
	if digest == "" || strings.Contains(image, "@") {
		return image
	}
	return image + "@" + digest
}

// ensure pulls an image if the engine does not have it, and checks that the tenant may run it. A registry that
// refuses the image of this machine may serve another one under the name by now, and may have deleted this one.
// Then the registry's answer to a pull decides.
func (p *pullPhase) ensure(ctx context.Context, image string) (digest string, err error) {
	p.stage.measure(func() (int, bool) { return p.runtime.PullPercent(image) })
	err = p.insist(ctx, image, func() error {
		found, err := p.usable(ctx, image, false)
		if found.Digest != "" && errors.Is(err, node.ErrImageNotFound) && !spec.PinnedImage(image) {
			p.log.Info("registry refuses the image of this machine, pulling", "image", image, "found", found.Digest)
			found, err = p.usable(ctx, image, true)
		}
		if err == nil {
			digest = found.Digest
		}
		return err
	})
	return digest, err
}

// usable returns the image of this machine, or pulls it, and checks that the tenant may run it.
func (p *pullPhase) usable(ctx context.Context, image string, fresh bool) (node.Image, error) {
	if err := p.pulled.hold(ctx, p.identity, image); err != nil {
		return node.Image{}, err
	}
	found, err := p.runtime.EnsureImage(ctx, image, p.login(), fresh)
	if found.Pulled {
		p.pulled.pulled(image, found)
	}
	if err == nil {
		err = p.access.demand(ctx, p.claim.Tenant, image, found, p.login())
	}
	return found, err
}

// insist asks with pullTries tries for an unreachable registry. Other errors are final.
func (p *pullPhase) insist(ctx context.Context, image string, ask func() error) error {
	wait := &backoff{min: p.timing.PullPause, max: 16 * p.timing.PullPause}
	shown := tries{stage: p.stage}
	for try := 1; ; try++ {
		err := ask()
		shown.note(err)
		if err == nil || try == pullTries || ctx.Err() != nil || !errors.Is(err, node.ErrImageUnavailable) {
			return err
		}
		p.log.Warn("image pull failed, will retry", "image", image, "try", try, "err", err)
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
}

// login returns the credentials for the registry; nil: anonymous.
func (p *pullPhase) login() *node.RegistryAuth {
	l := p.claim.ImageLogin
	if l == nil {
		return nil
	}
	return &node.RegistryAuth{Username: string(l.Username), Password: string(l.Password)}
}
