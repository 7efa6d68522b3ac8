package workers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"
)

// CreateNamespace creates a namespace for Berth's workflows and reports whether it did: an
// existing namespace keeps its settings. retention is how long Temporal keeps the history of
// ended workflows, at least a day. It needs the rights of an operator of Temporal.
//
// Temporal's services learn of a new namespace with a delay of seconds; calls in the
// namespace fail until then.
func CreateNamespace(ctx context.Context, c client.Client, namespace string, retention time.Duration) (bool, error) {
	_, err := c.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace:                        namespace,
		Description:                      "workflows of Berth",
		WorkflowExecutionRetentionPeriod: durationpb.New(retention),
	})
	if _, exists := errors.AsType[*serviceerror.NamespaceAlreadyExists](err); exists {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	return true, nil
}

// NamespaceRetention returns how long Temporal keeps the history of ended workflows of a
// namespace.
func NamespaceRetention(ctx context.Context, c client.Client, namespace string) (time.Duration, error) {
	d, err := c.WorkflowService().DescribeNamespace(ctx,
		&workflowservice.DescribeNamespaceRequest{Namespace: namespace})
	if err != nil {
		return 0, fmt.Errorf("describe namespace %s: %w", namespace, err)
	}
	return d.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration(), nil
}
