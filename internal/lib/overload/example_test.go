package overload_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/internal/lib/overload"
)

// A limiter bounds the calls in flight to one dependency. Its deadline ends a call
// that the dependency does not answer.
func ExampleLimiter_Do() {
	limiter := overload.New(overload.Options{Name: "temporal"})
	err := limiter.Do(context.Background(), overload.Start, func(ctx context.Context) error {
		_, bounded := ctx.Deadline()
		fmt.Println("deadline:", bounded)
		return nil
	})
	fmt.Println(err, limiter.Stats().Binding())
	// Output:
	// deadline: true
	// <nil> false
}

// A budget of two tokens allows two repeats; then a repeat waits until calls
// succeed or time has passed.
func ExampleBudget() {
	budget := overload.NewBudget(0.5, 2, time.Hour)
	fmt.Println(budget.Repeat(), budget.Repeat(), budget.Repeat())
	budget.Succeeded()
	budget.Succeeded()
	fmt.Println(budget.Repeat())
	// Output:
	// true true false
	// true
}

// A call that has no room in the queue was not made: its caller keeps the work.
func ExampleLimiter_Acquire() {
	limiter := overload.New(overload.Options{Name: "temporal", Min: 1, First: 1, Max: 1, Queue: 1, QueueFor: time.Millisecond})
	first, err := limiter.Acquire(context.Background(), overload.Start)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer first.Done(nil)
	_, err = limiter.Acquire(context.Background(), overload.Start)
	fmt.Println(errors.Is(err, overload.ErrShed))
	// Output: true
}
