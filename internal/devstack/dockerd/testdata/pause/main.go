// Command pause is the only program of the test image. It forks a copy of itself and prints
// a line, and both wait for a signal. With "get URL" it fetches a page instead, with
// "serve" it offers one on port 8080.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	switch {
	case len(os.Args) == 3 && os.Args[1] == "get":
		client := http.Client{Timeout: time.Minute}
		resp, err := client.Get(os.Args[2])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		_, _ = io.Copy(os.Stdout, resp.Body)
		return
	case len(os.Args) == 2 && os.Args[1] == "serve":
		l, err := net.Listen("tcp", ":8080")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go func() {
			_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "served")
			}))
		}()
	// The child is a second process in the container, as most programs have.
	case len(os.Args) == 1:
		if err := exec.Command("/pause", "child").Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	fmt.Println("ready")
	<-stop
}
