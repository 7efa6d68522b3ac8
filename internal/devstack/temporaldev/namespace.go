package temporaldev

import (
	"context"
	"errors"
	"fmt"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdktemporal "go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/types/known/durationpb"
)

// retention is the time for which closed workflows are kept. They are no archive: the job's
// row is.
const retention = 3 * 24 * time.Hour

// searchAttributes are the search attributes of Berth's workflows; see workers.AddSearchAttributes.
var searchAttributes = map[string]enumspb.IndexedValueType{
	"Tenant":  enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"Kind":    enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"JobName": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"User":    enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"Outcome": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
}

// prepareNamespace registers the namespace and its search attributes and waits until a workflow
// with these attributes can be started. Each step is repeated until it succeeds, because the
// server's caches learn of each change with a delay.
func prepareNamespace(ctx context.Context, c client.Client) error {
	steps := []struct {
		name string
		do   func(context.Context, client.Client) error
	}{
		{"register namespace " + Namespace, register},
		{"add search attributes", addSearchAttributes},
		{"start a workflow with search attributes", probe},
	}
	for _, s := range steps {
		if err := until(ctx, func(ctx context.Context) error { return s.do(ctx, c) }); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// register creates the namespace unless it exists.
func register(ctx context.Context, c client.Client) error {
	_, err := c.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace:                        Namespace,
		Description:                      "Berth's job workflows",
		WorkflowExecutionRetentionPeriod: durationpb.New(retention),
	})
	if _, exists := errors.AsType[*serviceerror.NamespaceAlreadyExists](err); exists {
		return nil
	}
	return err
}

// addSearchAttributes adds the search attributes; a repeated call changes nothing.
func addSearchAttributes(ctx context.Context, c client.Client) error {
	_, err := c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace:        Namespace,
		SearchAttributes: searchAttributes,
	})
	return err
}

// probe starts a workflow without a worker, with every attribute, and removes the workflow again:
// only a start proves that the mapping has reached all services.
func probe(ctx context.Context, c client.Client) error {
	updates := make([]sdktemporal.SearchAttributeUpdate, 0, len(searchAttributes))
	for name := range searchAttributes {
		updates = append(updates, sdktemporal.NewSearchAttributeKeyKeyword(name).ValueSet("probe"))
	}
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:                       "berth-dev/probe",
		TaskQueue:                "berth-dev/probe",
		WorkflowExecutionTimeout: time.Minute,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
		TypedSearchAttributes:    sdktemporal.NewSearchAttributes(updates...),
	}, "Probe")
	if err != nil {
		return err
	}
	if err := c.TerminateWorkflow(ctx, run.GetID(), run.GetRunID(), "probe of the search attributes"); err != nil {
		return err
	}
	_, err = c.WorkflowService().DeleteWorkflowExecution(ctx, &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace:         Namespace,
		WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: run.GetID(), RunId: run.GetRunID()},
	})
	return err
}

// Limits of one attempt at a step, the first and the longest. An attempt of three calls takes many seconds on a crowded
// machine, and would never succeed under a limit below that.
const (
	firstAttempt   = 5 * time.Second
	longestAttempt = time.Minute
)

// until repeats do until do succeeds. It returns do's last error when ctx ends.
func until(ctx context.Context, do func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := firstAttempt; ; limit = min(2*limit, longestAttempt) {
		attempt, cancel := context.WithTimeout(ctx, limit)
		err := do(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}
