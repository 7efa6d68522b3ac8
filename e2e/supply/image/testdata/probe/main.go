// Command probe prints what a program sees in the container of an image.
package main

import (
	"fmt"
	"os"
	"os/user"
)

func main() {
	fmt.Println("user", os.Getuid(), os.Getgid(), "home", os.Getenv("HOME"))
	who, err := user.Current()
	fmt.Println("known", who != nil && who.Username == "berth", err)
	for _, path := range []string{"/tmp/x", os.Getenv("HOME") + "/x", "/usr/bin/x"} {
		err := os.WriteFile(path, nil, 0o600)
		fmt.Println("write", path, err == nil)
	}
	b, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	fmt.Println("certificates", string(b), err)
	b, err = os.ReadFile("/usr/share/doc/berth/NOTICE")
	fmt.Println("notice", string(b), err)
}
