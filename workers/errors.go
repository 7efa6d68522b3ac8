package workers

import (
	"errors"

	"go.temporal.io/sdk/temporal"

	"berth"
)

// retryable is the one table from codes to Temporal's retry behaviour. An error that cannot
// resolve itself is returned to the workflow, which reads the row again; a machine whose
// token is refused may be let in later.
func retryable(c berth.Code) bool {
	switch c {
	case berth.CodeInvalid, berth.CodeNotFound, berth.CodeConflict:
		return false
	case berth.CodeUnauthorized, berth.CodeForbidden, berth.CodeCapacity, berth.CodeUnavailable, berth.CodeInternal:
		return true
	default:
		panic("unknown code " + string(c))
	}
}

// applicationError sets the type and the retry behaviour of a berth.Error for Temporal.
// Other errors pass unchanged, and are retried.
func applicationError(err error) error {
	e, ok := errors.AsType[*berth.Error](err)
	if !ok {
		return err
	}
	return temporal.NewApplicationErrorWithOptions(clip(err.Error(), maxMessage), string(e.Code),
		temporal.ApplicationErrorOptions{
			NonRetryable: !retryable(e.Code),
		})
}
