package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"berth"
	"berth/db"
	"berth/wire"
)

// Search attributes that versions before did not set. A namespace may lack them: berthd adds
// them only with the rights of an operator.
var (
	nameAttribute = temporal.NewSearchAttributeKeyKeyword(wire.AttributeJobName)
	userAttribute = temporal.NewSearchAttributeKeyKeyword(wire.AttributeUser)
)

// lackedFor is the time in which workflows start without the newer attributes, after Temporal
// has refused one with them. Workflows must start either way.
const lackedFor = time.Minute

// newerAttributes remembers whether the namespace lacks the newer attributes. The zero value
// supposes that it has them. All methods may be called concurrently.
type newerAttributes struct {
	until atomic.Int64 // Unix time in nanoseconds; 0: they are not known to be lacking
}

// known reports whether a workflow may be started with the newer attributes.
func (n *newerAttributes) known(now time.Time) bool { return now.UnixNano() >= n.until.Load() }

// lack notes a refusal, and reports whether it is news. Calls that are under way at a time are
// refused one after the other.
func (n *newerAttributes) lack(now time.Time) (news bool) {
	news = n.known(now)
	n.until.Store(now.Add(lackedFor).UnixNano())
	return news
}

// lacksAttribute reports whether Temporal refused a call because of a search attribute.
func lacksAttribute(err error) bool {
	invalid, ok := errors.AsType[*serviceerror.InvalidArgument](err)
	return ok && strings.Contains(strings.ToLower(invalid.Error()), "search attribute")
}

// starter makes the calls that start workflows. It may be used concurrently.
type starter struct {
	temporal   Temporal
	api        string // as Options.API
	log        *slog.Logger
	attributes newerAttributes
}

// start starts a workflow, without the newer attributes where the namespace lacks them.
func (s *starter) start(ctx context.Context, row db.Dispatch, policy enumspb.WorkflowIdReusePolicy) error {
	newer := s.attributes.known(time.Now())
	err := s.execute(ctx, row, policy, newer)
	if !newer || !lacksAttribute(err) {
		return err
	}
	if s.attributes.lack(time.Now()) {
		s.log.Warn("namespace lacks search attributes, workflows start without them", "attributes",
			[]string{wire.AttributeJobName, wire.AttributeUser, wire.AttributeOutcome}, "err", err)
	}
	return s.execute(ctx, row, policy, false)
}

// execute makes one call. With newer, the workflow has the newer search attributes and records
// its outcome in one of them when it ends.
func (s *starter) execute(
	ctx context.Context, row db.Dispatch, policy enumspb.WorkflowIdReusePolicy, newer bool,
) error {
	attributes := []temporal.SearchAttributeUpdate{
		tenantAttribute.ValueSet(string(row.Tenant)), kindAttribute.ValueSet(row.Kind),
	}
	if newer {
		attributes = append(attributes, nameAttribute.ValueSet(row.Name))
		if row.User != "" {
			attributes = append(attributes, userAttribute.ValueSet(row.User))
		}
	}
	in := wire.JobInput{Job: row.Job, Outcome: newer}
	if berth.Kind(row.Kind) == berth.KindPipeline {
		in.API = s.api
	}
	_, err := s.temporal.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:                                       berth.JobWorkflowID(row.Job),
		TaskQueue:                                berth.QueueControl,
		WorkflowIDReusePolicy:                    policy,
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		TypedSearchAttributes:                    temporal.NewSearchAttributes(attributes...),
		Memo: wire.Described{
			Job: row.Job, Name: row.Name, Image: row.Image, Tenant: row.Tenant, API: s.api,
		}.Memo(),
		StaticSummary:    row.Name,
		EnableEagerStart: true, // a worker of this process takes the first task along
	}, berth.WorkflowOf(berth.Kind(row.Kind)), in)
	return err
}
