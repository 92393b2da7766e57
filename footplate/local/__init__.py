"""`footplate up`: starts and stops Redis, the service and the nodes on one machine. It only starts processes."""
