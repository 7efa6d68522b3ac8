package agent

import (
	"context"

	"berth/activities/node"
	"berth/internal/machine/signature"
	"berth/wire"
)

// imageSignatures verifies the signatures of images before their containers are created. A verified
// image counts for a period: after that, a signature that was removed from the registry counts no
// more. Other keys are another question.
type imageSignatures struct {
	verifier *signature.Verifier
	verified *answers
}

func newImageSignatures(cfg Config) *imageSignatures {
	return &imageSignatures{
		verifier: &signature.Verifier{CertFolder: cfg.RegistryCerts}, verified: newAnswers(cfg.Timing.AccessFresh),
	}
}

// demand returns nil if the image with this digest has all demanded signatures. The errors are those
// of signature.Verifier.Verify.
func (s *imageSignatures) demand(
	ctx context.Context, ref, digest string, login *node.RegistryAuth, demands []wire.SignatureDemand,
) error {
	if len(demands) == 0 {
		return nil
	}
	parts := []string{ref, digest}
	if login != nil {
		parts = append(parts, login.Username, login.Password)
	}
	for _, d := range demands {
		parts = append(parts, question(append([]string{d.Whose}, d.Keys...)...))
	}
	return s.verified.ask(ctx, question(parts...), func(ctx context.Context) error {
		return s.verifier.Verify(ctx, ref, digest, login, demands)
	})
}
