package workers

import (
	"errors"

	"go.temporal.io/sdk/temporal"

	"berth"
)

// retryable is the one table from codes to Temporal's retry behaviour. What
// cannot get better by itself is returned to the workflow, which reads the row
// again; a machine whose token is refused may be let in later.
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

// applicationError gives an error of ours its type and its retry behaviour on
// the way to Temporal. Others pass as they are, and are retried.
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
