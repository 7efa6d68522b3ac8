package overload

import "context"

// classKey is the context key of a class.
type classKey struct{}

// As returns a context with a class for its calls, for limits that know of a call only the
// context.
func As(ctx context.Context, class Class) context.Context {
	return context.WithValue(ctx, classKey{}, class)
}

// ClassOf returns the class that As has set; End without one, since unclassified
// calls concern work that has begun.
func ClassOf(ctx context.Context) Class {
	if c, ok := ctx.Value(classKey{}).(Class); ok {
		return c
	}
	return End
}
