// Package notify delivers the notifications of channels: as messages in a chat, as mail, and as signed calls of
// a URL.
//
// Triggers of the schema add notifications as jobs, machines and spend change, in the transaction of the change. A
// Sender claims the channels that are due. For a chat and for mail, all waiting notifications of a channel become one
// message, and after a message a channel rests (adr/0097): the first notification arrives at once, and a thousand
// failed jobs are two messages. A channel of kind webhook gets one call for each notification.
//
// Delivery is at least once. A message is repeated with the same notifications until it is delivered, and a day after
// their creation notifications are dropped.
//
// The one rule to know: names, reasons and addresses are texts of users. Each renderer escapes them for its own
// format.
package notify
