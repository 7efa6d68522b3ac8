package workers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"berth"
)

// attributes are what workflows are started with.
var attributes = map[string]enumspb.IndexedValueType{
	berth.AttributeTenant: enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	berth.AttributeKind:   enumspb.INDEXED_VALUE_TYPE_KEYWORD,
}

// AddSearchAttributes makes sure that the namespace knows the attributes that
// workflows are started with. Doing it again changes nothing. It needs the
// rights of an operator, and where those are lacking somebody else must have
// done it.
//
// It looks first: a server that keeps visibility in SQL opens a connection to
// itself for each such request and never closes it (server 1.32).
func AddSearchAttributes(ctx context.Context, c client.Client, namespace string) error {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	if has, err := hasSearchAttributes(ctx, c, namespace); err == nil && has {
		return nil
	}
	_, err := c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace:        namespace,
		SearchAttributes: attributes,
	})
	if err != nil {
		return fmt.Errorf("add search attributes to namespace %s: %w", namespace, err)
	}
	return nil
}

// hasSearchAttributes reports whether the namespace has a name for each of our
// attributes, as it has where visibility is kept in SQL.
func hasSearchAttributes(ctx context.Context, c client.Client, namespace string) (bool, error) {
	d, err := c.WorkflowService().DescribeNamespace(ctx,
		&workflowservice.DescribeNamespaceRequest{Namespace: namespace})
	if err != nil {
		return false, err
	}
	known := slices.Collect(maps.Values(d.GetConfig().GetCustomSearchAttributeAliases()))
	for name := range attributes {
		if !slices.Contains(known, name) {
			return false, nil
		}
	}
	return true, nil
}
