package main

import (
	"context"
	"errors"
	"fmt"

	"berth"
	"berth/internal/lib/jobfile"
)

// exitCode is how the command line ends.
type exitCode int

const (
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

// exitCodes is the one table of exit codes; the help text and docs/reference/cli.md are
// made from it.
var exitCodes = []struct {
	code    exitCode
	meaning string
}{
	{exitDone, "done, or the job succeeded"},
	{exitJobFailed, "the job failed"},
	{exitWrong, "wrong use, or an invalid job file"},
	{exitNotFound, "not found"},
	{exitConflict, "conflict: not possible in this state"},
	{exitCanceled, "the job was canceled"},
	{exitRefused, "refused: token, role, quota, rate, or no machine could ever hold it"},
	{exitUnreachable, "the server cannot be reached, or failed"},
	{exitTimeout, "--timeout passed"},
	{exitInterrupted, "interrupted by Ctrl-C; jobs go on"},
}

// usageError is a call that makes no sense, or a file that cannot be read.
type usageError struct{ message, hint string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) *usageError {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// endedError carries an end without success out of submit --wait and wait. The
// command has already printed the end, so no error is printed.
type endedError struct{ state berth.State }

func (e *endedError) Error() string { return "the job " + string(e.state) }

// timeoutError is a --timeout that passed.
type timeoutError struct{ message, hint string }

func (e *timeoutError) Error() string { return e.message }

// unreachableError is a server that did not answer.
type unreachableError struct {
	url string
	err error
}

func (e *unreachableError) Error() string { return "no answer from " + e.url + ": " + e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

// exitOf returns the exit code of an error. The order of the cases matters: acts
// of the user come before their consequences.
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
	_, file := errors.AsType[*jobfile.Error](err)
	_, usage := errors.AsType[*usageError](err)
	if file || usage {
		return exitWrong
	}
	return exitWrong
}

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
	case berth.CodeUnauthorized, berth.CodeForbidden, berth.CodeCapacity:
		return exitRefused
	case berth.CodeUnavailable, berth.CodeInternal:
		return exitUnreachable
	default:
		panic("unknown error code " + string(e.Code))
	}
}
