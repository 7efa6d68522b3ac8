package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/ec2"
	"berth/internal/control/cloud/offers"
)

// ec2Config is the file of --config. All fields are optional.
type ec2Config struct {
	// Offers is a CSV file with the offers and their prices.
	Offers string `yaml:"offers"`
	// CredentialsFile and Profile choose credentials of the SDK's default chain.
	CredentialsFile string `yaml:"credentials_file"`
	Profile         string `yaml:"profile"`
	// Endpoint replaces the endpoints of all regions, for clouds with the API of EC2.
	Endpoint string `yaml:"endpoint"`
}

// ec2Command returns the subcommand for Amazon EC2.
func ec2Command() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "ec2",
		Short: "Answer one request with Amazon EC2",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := openEC2(cmd.Context(), path)
			if err != nil {
				return err
			}
			return serve(cmd, p)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "YAML file that names credentials and offers (default: none)")
	return cmd
}

// openEC2 returns the provider of a configuration file. The credentials come from the SDK's default
// chain: environment, shared files, web identity, instance profile.
func openEC2(ctx context.Context, path string) (*ec2.Provider, error) {
	var c ec2Config
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		if err := yaml.UnmarshalWithOptions(text, &c, yaml.Strict()); err != nil {
			return nil, fmt.Errorf("--config: %s: %w", path, err)
		}
	}
	// The SDK needs a region; only calls for credentials use this one.
	options := []func(*config.LoadOptions) error{config.WithDefaultRegion("us-east-1")}
	if c.CredentialsFile != "" {
		options = append(options, config.WithSharedCredentialsFiles([]string{c.CredentialsFile}))
	}
	if c.Profile != "" {
		options = append(options, config.WithSharedConfigProfile(c.Profile))
	}
	sdk, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("load the configuration of Amazon's SDK: %w", err)
	}
	return ec2.New(ec2.Options{
		Config: sdk, Endpoint: c.Endpoint,
		// Read by the call that needs it: a bad price must not keep a machine from being terminated.
		Offers: func() ([]cloud.Offer, error) {
			if c.Offers == "" {
				return nil, errors.New("the file of --config names no file of offers; set the field offers")
			}
			return offers.Load(c.Offers, "ec2")
		},
	}), nil
}
