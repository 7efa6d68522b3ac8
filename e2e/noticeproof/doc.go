// Package noticeproof reads notices and identities from Amazon's own mock of the metadata service of EC2, which knows
// nothing of Berth: the fakes of other tests have the same author as the code that they test.
//
// make proof-notices builds the mock (github.com/aws/amazon-ec2-metadata-mock, half a minute once) and runs the tests.
package noticeproof
