package client_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// Submit a job, wait for its end and print its log. The key makes the submit safe
// to repeat: a second call with it returns the same job.
func ExampleClient_Submit() {
	ctx := context.Background()
	c := client.New("http://127.0.0.1:7878", os.Getenv("BERTH_TOKEN"))
	defer c.Close()

	job, created, err := c.Submit(ctx, spec.Job{Name: "hello", Image: "busybox:1.36", Command: []string{"echo", "hello"}}, "hello-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.ID, created)

	if job, err = c.Wait(ctx, job.ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Status)

	err = c.Logs(ctx, job.ID, client.LogsQuery{}, func(line wire.LogLine) error {
		fmt.Println(line.Text)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Read all failed jobs of the last pages, page by page.
func ExampleClient_Jobs() {
	ctx := context.Background()
	c := client.New("http://127.0.0.1:7878", os.Getenv("BERTH_TOKEN"))
	defer c.Close()

	query := client.JobsQuery{Status: []berth.State{berth.Failed}}
	for {
		page, err := c.Jobs(ctx, query)
		if err != nil {
			log.Fatal(err)
		}
		for _, job := range page.Items {
			fmt.Println(job.ID, job.Reason.Code)
		}
		if query.Cursor = page.NextCursor; query.Cursor == "" {
			return
		}
	}
}

// Every refusal of the server is a *berth.Error with a code; any other error is a
// server that could not be reached.
func ExampleClient_Cancel() {
	c := client.New("http://127.0.0.1:7878", os.Getenv("BERTH_TOKEN"))
	defer c.Close()

	job, err := c.Cancel(context.Background(), "0190b5a0-0000-7000-8000-000000000000")
	switch {
	case client.Unreachable(err):
		fmt.Println("try again later")
	case berth.CodeOf(err) == berth.CodeNotFound:
		fmt.Println("no such job")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(job.Status)
	}
}

// FollowEvents prints each change of a job until the job has ended.
func ExampleClient_FollowEvents() {
	c := client.New("http://127.0.0.1:7878", os.Getenv("BERTH_TOKEN"))
	defer c.Close()

	err := c.FollowEvents(context.Background(), "0190b5a0-0000-7000-8000-000000000000", 0, func(e wire.Event) error {
		fmt.Println(e.At, e.Kind, e.To)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
