package agent

import (
	"context"
	"errors"
	"fmt"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/wire"
)

// recipe is the part of the container's specification that the preparation finds out.
type recipe struct {
	image    string      // reference of the image, pulled
	restored *int64      // step of the checkpoint in place; nil: none
	source   berth.JobID // job that saved it, if it is another one
}

// pullPhase makes the image usable: the one that its name meant when the job first
// ran, even if the name means another image by now.
type pullPhase struct {
	*core
	stage  *stager
	recipe *recipe
	spans  spans
	result *result
}

// Do pulls the image in a span of its own. A claim whose secrets the server could not provide
// ends the member before the pull.
func (p *pullPhase) Do(ctx context.Context) (phase, error) {
	if w := p.claim.Withheld; w != nil { // the server could not provide the secrets
		if w.Missing {
			return p.result.notStarted(failure.CauseSecretMissing, w.Message)
		}
		return p.result.notStarted(failure.CauseSecretUnavailable, w.Message)
	}
	return p.spans.step(ctx, "pull", p.result, p.pull)
}

// pull pulls the image. An attempt after the first must run the same content: if the name has
// moved to another digest since, the recorded digest is pulled instead.
func (p *pullPhase) pull(ctx context.Context) (phase, error) {
	p.reports.enter(slow, berth.PhasePulling)
	image := p.claim.Spec.Image
	digest, err := p.ensure(ctx, image)
	if want := p.claim.ImageDigest; err == nil && want != "" && digest != want {
		image += "@" + want
		if digest, err = p.ensure(ctx, image); err != nil {
			err = fmt.Errorf("%s is not the image any more that this job began with: %w", p.claim.Spec.Image, err)
		}
	}
	cause := failure.CauseImageUnavailable
	switch {
	case err == nil:
		p.recipe.image = image
		p.reports.edit(later, func(r *wire.RankReport) { r.ImageDigest = digest })
		return phaseWorkdir, nil
	case ctx.Err() != nil:
		return "", err
	case errors.Is(err, node.ErrImageNotFound):
		cause = failure.CauseImageNotFound
	case errors.Is(err, node.ErrImageMismatch):
		p.log.Error("image content does not match its digest", "image", image, "err", err)
		cause = failure.CauseImageMismatch
	}
	return p.result.notStarted(cause, err.Error())
}

// pullTries is how often this machine asks for an image that is unavailable, before
// another machine does.
const pullTries = 5

// ensure pulls an image if the engine does not have it, with pullTries tries for an unreachable
// registry. Other errors are final.
func (p *pullPhase) ensure(ctx context.Context, image string) (digest string, err error) {
	wait := &backoff{min: p.timing.PullPause, max: 16 * p.timing.PullPause}
	shown := tries{stage: p.stage}
	p.stage.measure(func() (int, bool) { return p.runtime.PullPercent(image) })
	for try := 1; ; try++ {
		digest, err = p.runtime.EnsureImage(ctx, image, p.login())
		shown.note(err)
		if err == nil || try == pullTries || ctx.Err() != nil || !errors.Is(err, node.ErrImageUnavailable) {
			return digest, err
		}
		p.log.Warn("image pull failed, will retry", "image", image, "try", try, "err", err)
		if err := wait.wait(ctx); err != nil {
			return "", err
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
