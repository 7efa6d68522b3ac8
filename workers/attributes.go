package workers

import (
	"context"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/sdk/client"

	"berth"
)

// AddSearchAttributes makes sure that the namespace knows the attributes that
// workflows are started with. Doing it again changes nothing. It needs the
// rights of an operator, and where those are lacking somebody else must have
// done it.
func AddSearchAttributes(ctx context.Context, c client.Client, namespace string) error {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	_, err := c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace: namespace,
		SearchAttributes: map[string]enumspb.IndexedValueType{
			berth.AttributeTenant: enumspb.INDEXED_VALUE_TYPE_KEYWORD,
			berth.AttributePool:   enumspb.INDEXED_VALUE_TYPE_KEYWORD,
			berth.AttributeKind:   enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		},
	})
	if err != nil {
		return fmt.Errorf("add search attributes to namespace %s: %w", namespace, err)
	}
	return nil
}
