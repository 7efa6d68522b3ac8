package cloudexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"berth/internal/control/cloud"
	"berth/spec"
)

// maxRequest is the longest request in bytes. The largest part is the settings of a pool.
const maxRequest = 4 << 20

// Serve reads one request from in, carries it out with p, and writes the answer to out. fields is the value of
// AnswersEnv: the answer has none of the later fields that are not named there. A request that is not valid is answered
// with kind Spec. An error means that no answer was written; the
// program must then exit with a status other than 0.
func Serve(ctx context.Context, p cloud.Provider, in io.Reader, out io.Writer, fields string) error {
	// One byte more than allowed shows that the request is longer.
	data, err := io.ReadAll(io.LimitReader(in, maxRequest+1))
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	var r Request
	if len(data) > maxRequest {
		err = fmt.Errorf("it is longer than %d MiB", maxRequest>>20)
	} else if err = decode(data, &r); err == nil {
		err = r.validate()
	}
	var a Answer
	if err != nil {
		err = &cloud.Error{Kind: cloud.Spec, Err: fmt.Errorf("the request is not valid: %w", err)}
	} else {
		a, err = dispatch(ctx, p, r)
	}
	if err != nil {
		a = Answer{Error: fault(err)}
		known := strings.Fields(strings.ReplaceAll(fields, ",", " "))
		a.Error.Unsent = a.Error.Unsent && slices.Contains(known, "unsent")
	}
	text, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	if _, err := out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// dispatch carries out a valid request. An empty list must be sent as [], since an answer without a
// list is not valid.
func dispatch(ctx context.Context, p cloud.Provider, r Request) (a Answer, err error) {
	switch r.Call {
	case CallCreate, CallFind:
		method := p.Create
		if r.Call == CallFind {
			method = p.Find
		}
		i, err := method(ctx, *r.Launch)
		return Answer{Instance: &i}, err
	case CallList:
		all, err := p.List(ctx, r.Cluster, r.Regions)
		if all == nil {
			all = []cloud.Instance{} // null would be no answer
		}
		return Answer{Instances: &all}, err
	case CallTerminate:
		return Answer{}, p.Terminate(ctx, *r.Instance)
	default: // validate allows no other
		all, err := p.Offers(ctx, r.Regions)
		if all == nil {
			all = []cloud.Offer{}
		}
		return Answer{Offers: &all}, err
	}
}

// fault returns an error for an answer. An error without a kind proves nothing. Texts are cut, since an
// answer has a limit.
func fault(err error) *Fault {
	var e *cloud.Error
	if !errors.As(err, &e) {
		return &Fault{Kind: cloud.Unknown, Message: cut(err.Error())}
	}
	return &Fault{
		Kind: e.Kind, Scope: cut(e.Scope), RetryAfter: spec.Duration(max(e.RetryAfter, 0)), Message: cut(e.Err.Error()),
		Unsent: e.Unsent && e.Kind == cloud.Throttle,
	}
}
