package main

import (
	"context"
	"errors"
	"fmt"

	"berth"
	"berth/api/client"
	"berth/internal/lib/jobfile"
)

// exitCode is the exit code of the process. Scripts branch on these codes, so new errors
// get one of them by their meaning.
type exitCode int

const (
	// Codes 1 and 5 are ends of jobs, not failures of the command line, so that a script
	// can distinguish a failed job from a failed call. 124 is the code of timeout(1), and
	// 130 is the code that shells report after SIGINT (128 + 2).
	exitDone        exitCode = 0
	exitJobFailed   exitCode = 1
	exitWrong       exitCode = 2
	exitNotFound    exitCode = 3
	exitConflict    exitCode = 4
	exitCanceled    exitCode = 5
	exitRefused     exitCode = 6
	exitUnreachable exitCode = 7
	exitTimeout     exitCode = 124
	exitInterrupted exitCode = 130
)

// exitCodes is the one table of exit codes. The help text and docs/reference/cli.md are
// generated from this table.
var exitCodes = []struct {
	code    exitCode
	meaning string
}{
	{exitDone, "success, or the job succeeded"},
	{exitJobFailed, "the job failed"},
	{exitWrong, "wrong use, or an invalid job file"},
	{exitNotFound, "not found"},
	{exitConflict, "conflict: not possible in this state"},
	{exitCanceled, "the job was canceled"},
	{exitRefused, "refused: token, role, quota, rate, or no machine can run the job"},
	{exitUnreachable, "the server cannot be reached, or failed; the connection of a session was cut; " +
		"a channel failed its test"},
	{exitTimeout, "--timeout passed"},
	{exitInterrupted, "interrupted by Ctrl-C; jobs continue"},
}

// usageError reports wrong arguments or a file that cannot be read: exit code 2. hint is a
// second line of advice, "" for none.
type usageError struct{ message, hint string }

// Error returns the message without the hint, which report prints.
func (e *usageError) Error() string { return e.message }

// usagef returns a usageError without a hint.
func usagef(format string, args ...any) *usageError {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// endedError carries an end without success out of submit --wait and wait. The command has
// already printed the end, so no error is printed.
type endedError struct{ state berth.State }

// Error returns the end in words. Users see the line of sayEnd instead.
func (e *endedError) Error() string { return "the job " + string(e.state) }

// timeoutError reports that --timeout passed: exit code 124. The job continues.
type timeoutError struct{ message, hint string }

// Error returns the message without the hint.
func (e *timeoutError) Error() string { return e.message }

// unreachableError reports a server that did not answer: exit code 7. An answer with an
// error is a berth.Error instead.
type unreachableError struct {
	url string
	err error
}

// Error names the server, as the URL may come from a context that the user did not type.
func (e *unreachableError) Error() string { return "no answer from " + e.url + ": " + e.err.Error() }

// Unwrap returns the error of the connection.
func (e *unreachableError) Unwrap() error { return e.err }

// outputError is a result that could not be written, such as to a full disk. The server has no part in it.
type outputError struct{ err error }

// Error returns the error of the write.
func (e *outputError) Error() string { return e.err.Error() }

// Unwrap returns the error of the write.
func (e *outputError) Unwrap() error { return e.err }

// unknownSubmitError reports a submit of which a try may have stored the job, and no later try returned it. The exit
// code is that of err.
type unknownSubmitError struct {
	name, key string
	err       error // as failed returns it
}

// Error returns the error of the last call.
func (e *unknownSubmitError) Error() string { return e.err.Error() }

// Unwrap returns the error of the last call.
func (e *unknownSubmitError) Unwrap() error { return e.err }

// hint returns the way to repeat the submit without a second job.
func (e *unknownSubmitError) hint() string {
	return fmt.Sprintf("the job may have been submitted, check with: berth list --name %s; to repeat the command "+
		"without a second job, add --idempotency-key %s", e.name, e.key)
}

// submitFailed converts the error of a submit under a key; see failed. After Ctrl-C only the server knows whether the
// job exists, and a message says so.
func submitFailed(ctx context.Context, a *app, err error, name, key string) error {
	unknown := &unknownSubmitError{name: name, key: key}
	if ctx.Err() != nil {
		a.say("interrupted; %s", unknown.hint())
		return ctx.Err()
	}
	lost, ok := errors.AsType[*client.LostAnswerError](err)
	if !ok {
		return a.failed(ctx, err)
	}
	unknown.err = a.failed(ctx, lost.Err)
	return unknown
}

// exitOf returns the exit code of an error. The order of the cases decides where errors are
// joined: the end of a job comes before a failure to print that end, as in wait.
func exitOf(err error) exitCode {
	if err == nil {
		return exitDone
	}
	if e, ok := errors.AsType[*endedError](err); ok {
		if e.state == berth.Canceled {
			return exitCanceled
		}
		return exitJobFailed
	}
	if e, ok := errors.AsType[*commandError](err); ok {
		return exitCode(e.code)
	}
	if errors.Is(err, errAborted) {
		return exitInterrupted
	}
	if _, ok := errors.AsType[*client.CutError](err); ok {
		return exitUnreachable
	}
	if _, ok := errors.AsType[*client.BrokenLogError](err); ok {
		return exitUnreachable
	}
	if _, ok := errors.AsType[*timeoutError](err); ok {
		return exitTimeout
	}
	if _, ok := errors.AsType[*unreachableError](err); ok {
		return exitUnreachable
	}
	if e, ok := errors.AsType[*berth.Error](err); ok {
		return exitOfAPI(e)
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	if _, ok := errors.AsType[*unknownSubmitError](err); ok {
		return exitUnreachable // an answer that is not of Berth
	}
	// Faults of files and usage errors have the same code as the rest: errors of this
	// machine, such as a result that cannot be written.
	_, file := errors.AsType[*jobfile.Error](err)
	_, usage := errors.AsType[*usageError](err)
	if file || usage {
		return exitWrong
	}
	return exitWrong
}

// exitOfAPI returns the exit code of an error of the API. The slug decides before the code:
// storage_quota, for example, is answered with status 413, which alone would mean an
// invalid request.
func exitOfAPI(e *berth.Error) exitCode {
	switch e.StableCode() {
	case berth.SlugUnsatisfiable, berth.SlugQuota, berth.SlugStorageQuota:
		return exitRefused
	case berth.SlugIdempotencyMismatch:
		return exitConflict
	}
	switch e.Code {
	case berth.CodeInvalid:
		return exitWrong
	case berth.CodeNotFound:
		return exitNotFound
	case berth.CodeConflict:
		return exitConflict
	// CodeCapacity is also a refusal for the rate of calls, after the client's own repeats.
	case berth.CodeUnauthorized, berth.CodeForbidden, berth.CodeCapacity:
		return exitRefused
	case berth.CodeUnavailable, berth.CodeInternal:
		return exitUnreachable
	default:
		// berth.Code is a closed set, and the client derives it from the HTTP status.
		panic("unknown error code " + string(e.Code))
	}
}
